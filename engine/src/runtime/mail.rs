//! Control mail of one task: a slot for each kind of order, so that none is ever refused, and a bell that waits can hear.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::element::{Barrier, EndKind, Notice};
use crate::ids::CheckpointId;
use crate::runtime::channel::{Bell, Ringer, bell};
use crate::runtime::input::Control;

/// What has been posted and not yet read. Of several barriers the newest stays: older checkpoints cannot complete any
/// more once a newer one has begun. So it is with notices: what holds for a checkpoint holds for those before it.
#[derive(Debug, Default)]
struct Slots {
    run: bool,
    barrier: Option<Barrier>,
    drain: Option<EndKind>,
    completed: Option<CheckpointId>,
    aborted: Option<CheckpointId>,
    released: bool,
    last_failed: Option<String>,
}

#[derive(Debug, Default)]
struct Letterbox {
    /// Looked at once per turn, without the lock. In one order with the bell, hence `SeqCst`: a poster that finds the bell
    /// struck does not strike it again, and the reader that hears that stroke must see the poster's letter all the same.
    any: AtomicBool,
    slots: Mutex<Slots>,
}

/// Where a task reads its mail.
#[derive(Debug)]
pub(crate) struct Mailbox {
    letters: Arc<Letterbox>,
    pub(crate) bell: Bell,
}

/// Posts mail to one task; never waits and is never refused.
#[derive(Clone, Debug)]
pub(crate) struct MailSender {
    letters: Arc<Letterbox>,
    ringer: Ringer,
}

pub(crate) fn mailbox() -> (MailSender, Mailbox) {
    let letters = Arc::new(Letterbox::default());
    let (ringer, bell) = bell();
    (MailSender { letters: letters.clone(), ringer }, Mailbox { letters, bell })
}

impl MailSender {
    pub(crate) fn post(&self, control: Control) {
        {
            let mut slots = self.letters.slots.lock().unwrap_or_else(PoisonError::into_inner);
            match control {
                Control::Run => slots.run = true,
                Control::Barrier(b) => slots.barrier = slots.barrier.max(Some(b)),
                // The first order to end decides.
                Control::Drain(kind) => drop(slots.drain.get_or_insert(kind)),
                Control::Notice(Notice::Completed(id)) => slots.completed = slots.completed.max(Some(id)),
                Control::Notice(Notice::Aborted(id)) => slots.aborted = slots.aborted.max(Some(id)),
                Control::Released => slots.released = true,
                Control::LastFailed(reason) => drop(slots.last_failed.get_or_insert(reason)),
            }
            self.letters.any.store(true, Ordering::SeqCst);
        }
        self.ringer.ring();
    }
}

impl Mailbox {
    /// The next letter: a barrier that was posted before a drain is read before it.
    #[inline]
    pub(crate) fn take(&self) -> Option<Control> {
        if !self.letters.any.load(Ordering::SeqCst) {
            return None;
        }
        self.take_slowly()
    }

    #[cold]
    fn take_slowly(&self) -> Option<Control> {
        let mut slots = self.letters.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut slots.run) {
            return Some(Control::Run);
        }
        if let Some(id) = slots.aborted.take() {
            return Some(Control::Notice(Notice::Aborted(id)));
        }
        if let Some(id) = slots.completed.take() {
            return Some(Control::Notice(Notice::Completed(id)));
        }
        if let Some(reason) = slots.last_failed.take() {
            return Some(Control::LastFailed(reason));
        }
        if std::mem::take(&mut slots.released) {
            return Some(Control::Released);
        }
        if let Some(barrier) = slots.barrier.take() {
            return Some(Control::Barrier(barrier));
        }
        let drain = slots.drain.take().map(Control::Drain);
        self.letters.any.store(false, Ordering::SeqCst);
        drain
    }

    /// Takes the order to run, if it is there, and nothing else.
    pub(crate) fn may_run(&self) -> bool {
        std::mem::take(&mut self.letters.slots.lock().unwrap_or_else(PoisonError::into_inner).run)
    }

    pub(crate) fn has_mail(&self) -> bool {
        self.letters.any.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn barrier(id: u64) -> Control {
        Control::Barrier(Barrier { checkpoint: CheckpointId(id) })
    }

    #[test]
    fn however_much_is_posted_run_and_drain_arrive_and_the_newest_barrier() {
        let (sender, mail) = mailbox();
        assert_eq!(mail.take(), None);
        sender.post(Control::Run);
        (1..=1000).for_each(|id| sender.post(barrier(id)));
        sender.post(Control::Drain(EndKind::Keep));
        sender.post(Control::Drain(EndKind::Flush));
        let read: Vec<_> = std::iter::from_fn(|| mail.take()).collect();
        assert_eq!(read, [Control::Run, barrier(1000), Control::Drain(EndKind::Keep)]);
        assert_eq!(mail.take(), None);
        sender.post(barrier(1001));
        assert_eq!(mail.take(), Some(barrier(1001)));
        assert!(!mail.has_mail() || mail.take().is_none());
    }
}
