//! What a program says of a space while it runs: tags and segments are added, changed and dropped under readers and writers.

use super::CHUNK_BITS;
use super::change::Change;
use super::chunk::TagChunk;
use super::error::{ProfileError, QueryError};
use super::eval::MAX_DEPTH;
use super::predicate::Predicate;
use super::scalar;
use super::space::Profiles;
use super::update::TagType;

impl Profiles {
    /// Defines a tag while writers and readers run; defining it again with the same type does nothing.
    ///
    /// Users have no value of it until an update gives one. Like all that is changed at run time it is in the next checkpoint, and what the checkpoint
    /// has goes before what the program defines when it starts.
    ///
    /// # Errors
    /// [`ProfileError::TypeClash`] if the tag has another type, [`ProfileError::SameColumn`] if it is new and another is the same column.
    pub fn add_tag(&self, name: &str, kind: TagType) -> Result<(), ProfileError> {
        self.change(Change::AddTag { tag: name.to_owned(), kind }).map(drop)
    }

    /// Gives a tag a wider type while writers and readers run: int and uint become float or decimal, decimal takes more digits behind the point,
    /// date becomes timestamp, intset set. All values stay, and all times that decide about late updates.
    ///
    /// Each writer rewrites its values of the tag when it meets its next update or publishes; until then, and in versions that are pinned,
    /// they are asked as they are, which gives the same answers.
    ///
    /// *Blocking*: looks at all values first if the wider type may lack some.
    ///
    /// # Errors
    /// [`ProfileError::Narrows`] for any other type, [`ProfileError::Unwidened`] for a value that the type has not (an int beyond 2^53 that no float
    /// is, or with too many digits for the decimal), an unknown tag, and a segment that could not ask for the tag any more. An update that
    /// brings such a value at this very moment leaves the tag as it was in its key group, and there it takes the older type's deltas
    /// until the value is gone.
    pub fn alter_tag(&self, name: &str, kind: TagType) -> Result<(), ProfileError> {
        self.space.fits_widened(name, kind)?;
        self.change(Change::AlterTag { tag: name.to_owned(), kind }).map(drop)
    }

    /// Drops a tag while writers and readers run, with all its values. Versions that are pinned keep it. A tag that is added under the same name later
    /// begins empty, and may have another type. A tag that the program defines when it starts stays dropped after a restore, until
    /// it is added at run time.
    ///
    /// # Errors
    /// An unknown tag, and one that a segment asks for.
    pub fn drop_tag(&self, name: &str) -> Result<(), ProfileError> {
        self.change(Change::DropTag { tag: name.to_owned() }).map(drop)
    }

    /// Renames a tag while writers and readers run; with another table before the point it moves there. Updates must use the new name from now on.
    ///
    /// # Errors
    /// An unknown tag, one that a segment asks for, and a name that another tag has.
    pub fn rename_tag(&self, name: &str, to: &str) -> Result<(), ProfileError> {
        self.change(Change::RenameTag { tag: name.to_owned(), to: to.to_owned() }).map(drop)
    }

    /// Registers a segment when the space is built. A condition that cannot be asked is reported by [`writer`](Self::writer). What was
    /// changed of it at run time is in the checkpoint, and goes before this.
    ///
    /// ```
    /// use weir_state::profile::{Predicate, Profiles, tag};
    /// let profiles = Profiles::named("p")
    ///     .int_tag("buys")
    ///     .segment("buyers", tag("buys").ge(1))
    ///     .segment("others", !Predicate::segment("buyers"));
    /// assert_eq!(profiles.segments().len(), 2);
    /// ```
    #[must_use]
    pub fn segment(self, name: &str, condition: Predicate) -> Self {
        let put = self.space.edit(|catalogue| {
            let put = catalogue.put_segment(name, condition)?;
            catalogue.built_segment(name);
            Ok(put)
        });
        if let Err(error) = put {
            self.space.put_defect(error);
        }
        self
    }

    /// Registers a segment while writers and readers run, or gives it another condition. Conditions name it as [`Predicate::segment`] and
    /// `segment('name')`; in a version that is pinned it stays what it was.
    ///
    /// # Errors
    /// [`ProfileError::SegmentCycle`] if it would be a part of itself, [`ProfileError::BadSegment`] if its condition cannot be asked: an unknown
    /// tag or segment, a test that does not fit, more than 10,000 parts with those of the segments that it names.
    pub fn define_segment(&self, name: &str, condition: Predicate) -> Result<(), ProfileError> {
        if condition.depth > MAX_DEPTH {
            let problem =
                QueryError::TooLarge { what: "nesting depth", size: condition.depth, limit: MAX_DEPTH };
            return Err(ProfileError::BadSegment { segment: name.to_owned(), problem: Box::new(problem) });
        }
        self.change(Change::PutSegment { segment: name.to_owned(), condition: condition.to_json() }).map(drop)
    }

    /// Drops a segment; whether there was one.
    ///
    /// # Errors
    /// [`ProfileError::SegmentUsed`] while another segment names it.
    pub fn drop_segment(&self, name: &str) -> Result<bool, ProfileError> {
        self.change(Change::DropSegment { segment: name.to_owned() })
    }

    /// All segments with their conditions, by name.
    pub fn segments(&self) -> Vec<(String, Predicate)> {
        let catalogue = self.space.catalogue();
        catalogue.segments().map(|(name, condition)| (name.to_string(), condition.clone())).collect()
    }

    fn change(&self, change: Change) -> Result<bool, ProfileError> {
        self.space.change(&[change])
    }

    /// Carries out all of some changes, or none.
    pub(crate) fn change_all(&self, changes: Vec<Change>) -> Result<bool, ProfileError> {
        for change in &changes {
            if let Change::AlterTag { tag, kind } = change {
                self.space.fits_widened(tag, *kind)?;
            }
        }
        self.space.change(&changes)
    }
}

impl super::space::Space {
    /// Refuses a wider type that has not all values that were published.
    fn fits_widened(&self, name: &str, to: TagType) -> Result<(), ProfileError> {
        let catalogue = self.catalogue();
        let Some((number, is)) = catalogue.find(name) else { return Ok(()) };
        let lossless = matches!(is, TagType::Date | TagType::IntSet) || is == to || !is.widens_to(to);
        if lossless {
            return Ok(());
        }
        for cell in self.layout().cells.chunk_by(std::sync::Arc::ptr_eq) {
            for group in &cell[0].load().groups {
                for (at, chunk) in group.chunks.iter().enumerate() {
                    let from = group.kind(number).unwrap_or(is);
                    let numbers = chunk.tag(number).into_iter().flat_map(TagChunk::numbers);
                    for (local, key) in numbers.filter(|(_, key)| scalar::widened(from, to, *key).is_none()) {
                        let user = group.dict.name((at as u32) << CHUNK_BITS | u32::from(local));
                        let Some(user) = user.cloned() else { continue };
                        let (tag, value) = (name.to_owned(), Box::new(scalar::value(from, key)));
                        return Err(ProfileError::Unwidened { tag, is, wanted: to, value, user });
                    }
                }
            }
        }
        Ok(())
    }
}
