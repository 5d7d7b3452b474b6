//! Mailbox, bell, latch and channel by themselves: nothing posted is lost, and nothing waits for ever.

use std::sync::Arc;
use std::time::Duration;

use super::{explore, once_in, pick, spawn};
use crate::element::{Barrier, Element, EndKind, Notice, Record};
use crate::error::{Cause, Result};
use crate::ids::CheckpointId;
use crate::runtime::channel::{Cancel, Peeked, Tx, bell, cancellation, edge, wait_any};
use crate::runtime::input::Control;
use crate::runtime::latch::Latch;
use crate::runtime::mail::{Mailbox, mailbox};
use crate::time::EventTime;

/// How long it is makes no difference to a scheduler.
const TIME: Duration = Duration::from_millis(1);

pub(super) fn barrier(id: u64) -> Barrier {
    Barrier { checkpoint: CheckpointId(id) }
}

fn completed(id: u64) -> Control {
    Control::Notice(Notice::Completed(CheckpointId(id)))
}

pub(super) fn aborted(id: u64) -> Control {
    Control::Notice(Notice::Aborted(CheckpointId(id)))
}

/// Everything that two posters post to one task, each in order.
fn letters() -> [Vec<Control>; 2] {
    [
        vec![
            Control::Run,
            Control::Barrier(barrier(1)),
            Control::Barrier(barrier(2)),
            Control::Drain(EndKind::Keep),
        ],
        vec![aborted(1), completed(2), Control::Released],
    ]
}

/// Posts from two threads while `next` reads, letter by letter (none: it has waited instead); what is read must be all that
/// counts.
pub(super) fn post_and_read(
    post: impl Fn(Control) + Clone + Send + 'static,
    mut next: impl FnMut() -> Option<Control>,
) {
    let posters = letters().map(|letters| {
        let post = post.clone();
        spawn("poster", move || letters.into_iter().for_each(post))
    });
    let mut got = Vec::new();
    while !(got.contains(&Control::Drain(EndKind::Keep)) && got.contains(&Control::Released)) {
        got.extend(next());
    }
    posters.into_iter().for_each(|poster| poster.join().expect("a poster ends"));
    let place = |letter: &Control| got.iter().position(|l| l == letter);
    for letter in [Control::Run, Control::Barrier(barrier(2)), aborted(1), completed(2)] {
        assert!(place(&letter).is_some(), "{letter:?} is not among {got:?}");
    }
    assert!(place(&Control::Barrier(barrier(2))) < place(&Control::Drain(EndKind::Keep)), "{got:?}");
    assert!(place(&completed(2)) < place(&Control::Released), "{got:?}");
}

/// As a task that has ended waits for its release.
fn take_or_wait(mail: &Mailbox, cancel: &Cancel) -> Option<Control> {
    let letter = mail.take();
    if letter.is_none() {
        mail.bell.wait(None, cancel).expect("nobody cancels");
    }
    letter
}

#[test]
fn a_posted_letter_is_always_read() {
    explore("kernel::a_posted_letter_is_always_read", || {
        let ((sender, mail), (_alive, cancel)) = (mailbox(), cancellation());
        post_and_read(move |letter| sender.post(letter), || take_or_wait(&mail, &cancel));
    });
}

/// As a task waits for the others to open, and then goes on.
#[test]
fn an_order_to_run_is_heard_and_leaves_the_others_where_they_are() {
    explore("kernel::an_order_to_run_is_heard_and_leaves_the_others_where_they_are", || {
        let ((sender, mail), (_alive, cancel)) = (mailbox(), cancellation());
        let mut runs = false;
        post_and_read(
            move |letter| sender.post(letter),
            || {
                if std::mem::replace(&mut runs, true) {
                    return take_or_wait(&mail, &cancel);
                }
                while !mail.may_run() {
                    mail.bell.wait(None, &cancel).expect("nobody cancels");
                }
                Some(Control::Run)
            },
        );
    });
}

/// As a source that is idle waits: for so long at most, unless there is mail.
#[test]
fn a_drain_posted_during_a_wait_ends_it() {
    explore("kernel::a_drain_posted_during_a_wait_ends_it", || {
        let (sender, mail) = mailbox();
        let (_alive, cancel) = cancellation();
        let poster = spawn("poster", move || sender.post(Control::Drain(EndKind::Flush)));
        // For ever rather than for a while: a wait that is over by itself would hide a bell that was not heard.
        while !mail.has_mail() {
            mail.bell.wait(None, &cancel).expect("nobody cancels");
        }
        assert_eq!(mail.take(), Some(Control::Drain(EndKind::Flush)));
        poster.join().expect("it ends");
    });
}

#[test]
fn a_cancel_ends_every_kind_of_wait() {
    explore("kernel::a_cancel_ends_every_kind_of_wait", || {
        let (handle, cancel) = cancellation();
        let waits: Vec<_> = (0..4)
            .map(|kind| {
                let cancel = cancel.clone();
                spawn("waits", move || {
                    let (tx, rx) = edge::<u64>(1);
                    let (_ringer, bell) = bell();
                    assert!(tx.try_send(Element::Idle).expect("it is there").is_none());
                    match kind {
                        0 => bell.wait(None, &cancel),
                        1 => tx.send_blocking(Element::Active, &cancel),
                        2 => wait_any(&[rx], |_| false, &bell, &cancel, None),
                        // Time is up again and again: that is no end of its own.
                        _ => loop {
                            wait_any(std::slice::from_ref(&rx), |_| false, &bell, &cancel, Some(TIME))?;
                        },
                    }
                })
            })
            .collect();
        assert!(!cancel.is_cancelled());
        if once_in(2) {
            handle.cancel()
        } else {
            drop(handle)
        }
        for wait in waits {
            let error = wait.join().expect("no panic").expect_err("it can only be cancelled");
            assert_eq!(error.cause(), Cause::Cancelled);
        }
        assert!(cancel.is_cancelled());
    });
}

#[test]
fn a_latch_lets_everybody_through_with_the_first_value() {
    explore("kernel::a_latch_lets_everybody_through_with_the_first_value", || {
        let latch = Arc::new(Latch::new());
        let waits = [0, 1].map(|_| {
            let latch = latch.clone();
            spawn("waits", move || latch.wait(None))
        });
        let opens = [1, 2].map(|value| {
            let latch = latch.clone();
            spawn("opens", move || latch.open(value))
        });
        opens.into_iter().for_each(|opens| opens.join().expect("it opens"));
        let first = latch.get();
        assert!(
            waits.into_iter().all(|wait| wait.join().expect("it is through") == first && first.is_some())
        );
    });
}

/// A full channel of depth 1: what is sent arrives, once and in order, and a consumer that goes away is noticed.
#[test]
fn a_full_channel_holds_its_producer_back_and_loses_nothing() {
    explore("kernel::a_full_channel_holds_its_producer_back_and_loses_nothing", || {
        let (tx, rx) = edge::<u64>(1);
        let (_alive, cancel) = cancellation();
        let leaves_after = if once_in(3) { pick(4) } else { u64::MAX };
        let own = cancel.clone();
        let producer = spawn("producer", move || {
            (0..6).try_for_each(|i| {
                let mut batch = tx.batch(1);
                batch.push(Record::new(i, EventTime(0)));
                send(&tx, Element::Batch(batch), &own)
            })
        });
        let (_ringer, bell) = bell();
        let mut got = Vec::new();
        loop {
            if got.len() as u64 > leaves_after {
                break;
            }
            match rx.peek() {
                Peeked::Got(Element::Batch(mut batch)) => {
                    got.extend(batch.drain(..).map(|r| r.value));
                    rx.give_back(batch);
                }
                Peeked::Got(_) => unreachable!("only batches are sent"),
                Peeked::Empty => {
                    wait_any(std::slice::from_ref(&rx), |_| true, &bell, &cancel, None).expect("no cancel")
                }
                Peeked::Lost => break,
            }
        }
        drop(rx);
        let sent = producer.join().expect("no panic");
        assert!(got.iter().copied().eq(0..got.len() as u64), "{got:?}");
        match sent {
            Ok(()) => assert!(got.len() == 6 || leaves_after < 6),
            Err(e) => assert_eq!((e.cause(), leaves_after < 6), (Cause::DownstreamLost, true)),
        }
    });
}

/// As an exchange sends.
pub(super) fn send<T>(tx: &Tx<T>, element: Element<T>, cancel: &Cancel) -> Result<()> {
    match tx.try_send(element)? {
        None => Ok(()),
        Some(element) => tx.send_blocking(element, cancel),
    }
}
