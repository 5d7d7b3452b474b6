//! Control mail of one task: a slot for each kind of order, so that none is ever refused, and a bell that waits can hear.

use std::sync::{Arc, PoisonError};

use crate::element::{Barrier, EndKind, Notice};
use crate::ids::CheckpointId;
use crate::runtime::channel::{Bell, Ringer, bell};
use crate::runtime::input::Control;
use crate::runtime::sync::Mutex;
use crate::runtime::sync::atomic::{AtomicBool, Ordering};

/// What has been posted and not yet read. Of several barriers the newest stays: older checkpoints cannot complete any
/// more once a newer one has begun. So it is with notices: what holds for a checkpoint holds for those before it.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    run: bool,
    barrier: Option<Barrier>,
    drain: Option<EndKind>,
    completed: Option<CheckpointId>,
    aborted: Option<CheckpointId>,
    released: bool,
    last_failed: Option<String>,
    freeze_last: bool,
}

impl Slots {
    /// Puts a letter into its slot.
    pub(crate) fn post(&mut self, control: Control) {
        match control {
            Control::Run => self.run = true,
            Control::Barrier(b) => self.barrier = self.barrier.max(Some(b)),
            // The first order to end decides.
            Control::Drain(kind) => drop(self.drain.get_or_insert(kind)),
            Control::Notice(Notice::Completed(id)) => self.completed = self.completed.max(Some(id)),
            Control::Notice(Notice::Aborted(id)) => self.aborted = self.aborted.max(Some(id)),
            Control::Released => self.released = true,
            Control::LastFailed(reason) => drop(self.last_failed.get_or_insert(reason)),
            Control::FreezeLast => self.freeze_last = true,
        }
    }

    /// The next letter.
    pub(crate) fn take(&mut self) -> Option<Control> {
        if std::mem::take(&mut self.run) {
            return Some(Control::Run);
        }
        if let Some(id) = self.aborted.take() {
            return Some(Control::Notice(Notice::Aborted(id)));
        }
        if let Some(id) = self.completed.take() {
            return Some(Control::Notice(Notice::Completed(id)));
        }
        if let Some(reason) = self.last_failed.take() {
            return Some(Control::LastFailed(reason));
        }
        if std::mem::take(&mut self.freeze_last) {
            return Some(Control::FreezeLast);
        }
        if std::mem::take(&mut self.released) {
            return Some(Control::Released);
        }
        if let Some(barrier) = self.barrier.take() {
            return Some(Control::Barrier(barrier));
        }
        self.drain.take().map(Control::Drain)
    }

    /// Is there a letter?
    #[cfg(test)]
    pub(crate) fn has_any(&self) -> bool {
        self.run
            || self.released
            || self.barrier.is_some()
            || self.drain.is_some()
            || self.completed.is_some()
            || self.aborted.is_some()
            || self.last_failed.is_some()
            || self.freeze_last
    }
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
    /// For whoever else may wake the task.
    pub(crate) ringer: Ringer,
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
    let sender = MailSender { letters: letters.clone(), ringer: ringer.clone() };
    (sender, Mailbox { letters, bell, ringer })
}

impl MailSender {
    pub(crate) fn post(&self, control: Control) {
        {
            let mut slots = self.letters.slots.lock().unwrap_or_else(PoisonError::into_inner);
            slots.post(control);
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
        let letter = slots.take();
        // A drain is taken last.
        if matches!(letter, None | Some(Control::Drain(_))) {
            self.letters.any.store(false, Ordering::SeqCst);
        }
        letter
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
