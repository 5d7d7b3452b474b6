//! `Giving`: when a window gives results, as a user says it, and whether these replace each other or add up.

use std::time::Duration;

use crate::window::assign::{WindowError, checked_ms};

/// What a user wrote: what windows that fire, sessions and the global window have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Giving {
    pub(crate) lateness: Duration,
    pub(crate) every: Option<u32>,
    pub(crate) after: Option<Duration>,
    pub(crate) discards: bool,
}

impl Giving {
    /// Later results may replace earlier ones.
    pub(crate) fn gives_updates(&self) -> bool {
        self.gives_several() && !self.discards
    }

    /// There may be several results that add up.
    pub(crate) fn gives_parts(&self) -> bool {
        self.gives_several() && self.discards
    }

    fn gives_several(&self) -> bool {
        self.every.is_some() || self.after.is_some() || !self.lateness.is_zero()
    }

    /// Nothing is asked for.
    pub(crate) fn is_plain(&self) -> Result<(), WindowError> {
        let Giving { lateness, every, after, discards } = self;
        let asked = [
            ("allow_lateness", !lateness.is_zero()),
            ("early_every", every.is_some()),
            ("early_after", after.is_some()),
            ("discarding", *discards),
        ];
        let name = asked.iter().find(|(_, asked)| *asked).map(|(name, _)| *name);
        name.map_or(Ok(()), |name| Err(WindowError::NotProcessed { name }))
    }

    /// What holds, if everything can be.
    pub(crate) fn check(&self) -> Result<When, WindowError> {
        if self.every == Some(0) {
            return Err(WindowError::Zero { name: "early_every" });
        }
        Ok(When {
            lateness: checked_ms("lateness", self.lateness, 0)?,
            every: self.every.unwrap_or(u32::MAX),
            after: self.after.map(|time| checked_ms("early_after", time, 1)).transpose()?,
            discards: self.discards,
        })
    }
}

/// A [`Giving`] that was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct When {
    pub(crate) lateness: i64,
    /// `u32::MAX` stands for none.
    pub(crate) every: u32,
    pub(crate) after: Option<i64>,
    pub(crate) discards: bool,
}

impl When {
    /// With so many records since the last result an early one is due.
    #[inline]
    pub(crate) fn is_due(&self, since: u32) -> bool {
        // It is not counted further than that.
        since >= self.every && self.every < u32::MAX
    }
}

impl Default for When {
    /// One result when the window is over.
    fn default() -> Self {
        When { lateness: 0, every: u32::MAX, after: None, discards: false }
    }
}
