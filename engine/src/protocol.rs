//! The rules of a stream, checked around every stage in debug builds and gone in release builds.

use crate::time::Watermark;

/// Panics when a stage breaks the protocol: watermarks rise, nothing follows the end. Zero-sized in release builds.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProtocolCheck {
    #[cfg(debug_assertions)]
    watermark: Option<Watermark>,
    #[cfg(debug_assertions)]
    ended: bool,
}

impl ProtocolCheck {
    /// A record, batch end, barrier or idle passes.
    ///
    /// # Panics
    /// In debug builds, after the end.
    #[inline(always)]
    pub(crate) fn passes(&self) {
        #[cfg(debug_assertions)]
        assert!(!self.ended, "protocol: an element after End");
    }

    /// A watermark passes.
    ///
    /// # Panics
    /// In debug builds, when it does not rise or comes after the end.
    #[inline(always)]
    pub(crate) fn watermark(&mut self, w: Watermark) {
        let _ = w;
        #[cfg(debug_assertions)]
        {
            self.passes();
            assert!(self.watermark < Some(w), "protocol: watermark {w:?} after {:?}", self.watermark);
            self.watermark = Some(w);
        }
    }

    /// The end passes.
    ///
    /// # Panics
    /// In debug builds, when it comes twice.
    #[inline(always)]
    pub(crate) fn end(&mut self) {
        #[cfg(debug_assertions)]
        {
            self.passes();
            self.ended = true;
        }
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "watermark 3 after Some(3)")]
    fn a_watermark_that_does_not_rise() {
        let mut check = ProtocolCheck::default();
        check.watermark(Watermark(3));
        check.watermark(Watermark(3));
    }

    #[test]
    #[should_panic(expected = "an element after End")]
    fn a_record_after_the_end() {
        let mut check = ProtocolCheck::default();
        check.end();
        check.passes();
    }
}
