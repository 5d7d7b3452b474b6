//! A broker that is killed and comes back while a job writes to it.

use std::time::Duration;

use weir_engine::testkit::until;

use super::rig::{Rig, SOON, Trap, broker};

#[test]
fn a_broker_that_is_killed_and_comes_back_loses_and_doubles_nothing() {
    const N: u64 = 12_000;
    let rig = Rig::new("killed-broker", 3);
    let handle = rig.job(2, N, 1_500.0, Trap::at([]), rig.checkpoints(100)).start().unwrap();
    for _ in 0..2 {
        let before = handle.checkpoints().len();
        until(&handle, SOON, "some checkpoints", || {
            handle.is_over() || handle.checkpoints().len() > before + 3
        });
        broker().kill().unwrap();
        // Long enough for requests to fail.
        std::thread::park_timeout(Duration::from_secs(1));
        broker().restart().unwrap();
    }
    let report = handle.wait_for(SOON).expect("it goes on").unwrap();
    assert_eq!(report.attempts, 1, "the pump rides it out");
    rig.assert_exact(N, "after two kills");
}
