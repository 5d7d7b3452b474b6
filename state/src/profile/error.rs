//! What can go wrong with an update, a claim or a query; each message names the value and the way out.
//! (over 400 lines: all messages beside each other)

use super::update::{TagType, TagValue};
use super::user::UserId;
use crate::error::StateError;
use crate::key::KeyGroup;

/// Why an update, a tag definition or a claim was refused. Nothing of it took effect.
///
/// All of these are faults of the caller's job and come again when retried, but for [`Claimed`](Self::Claimed) (release
/// the other writer first).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The tag is not defined.
    #[error(
        "tag '{tag}' is not known to profile '{space}' (known: {known}); define it with add_tag before updating it"
    )]
    UnknownTag {
        /// The tag asked for.
        tag: String,
        /// The profile space.
        space: String,
        /// The tags there are.
        known: String,
    },
    /// The tag is defined with another type.
    #[error("tag '{tag}' is already defined as {is}, so it cannot be {wanted}; use another name")]
    TypeClash {
        /// The tag.
        tag: String,
        /// The type it has.
        is: TagType,
        /// The type asked for.
        wanted: TagType,
    },
    /// A tag cannot take a type that has not all of its values.
    #[error(
        "tag '{tag}' is {is} and cannot be altered to {wanted}; it can be widened: int and uint to float or decimal, decimal to more \
         digits, date to timestamp, intset to set"
    )]
    Narrows {
        /// The tag.
        tag: String,
        /// The type it has.
        is: TagType,
        /// The type asked for.
        wanted: TagType,
    },
    /// A user has a value that the wider type has not.
    #[error(
        "tag '{tag}' cannot be altered from {is} to {wanted}, which has no {value} as user {user} has; set another value first, or \
         choose another type"
    )]
    Unwidened {
        /// The tag.
        tag: String,
        /// The type it has.
        is: TagType,
        /// The type asked for.
        wanted: TagType,
        /// The value.
        value: Box<TagValue>,
        /// A user who has it.
        user: UserId,
    },
    /// Another tag is the same column of the same table.
    #[error(
        "tag '{tag}' would be the same column as tag '{other}', since tags without a table belong to that of the space's name; use \
         another name"
    )]
    SameColumn {
        /// The tag.
        tag: String,
        /// The tag that is there.
        other: String,
    },
    /// A decimal tag would have too many digits behind the point.
    #[error("decimal tag '{tag}' cannot have {scale} digits behind the point; give it {most} at most")]
    Scale {
        /// The tag.
        tag: String,
        /// The digits asked for.
        scale: u8,
        /// How many there may be.
        most: u8,
    },
    /// The delta does not fit the tag's type.
    #[error("{delta} {value} does not fit {is} tag '{tag}' of user {user}; it takes {takes}")]
    Mismatch {
        /// The kind of delta.
        delta: &'static str,
        /// Its value, empty if it has none.
        value: String,
        /// The tag.
        tag: String,
        /// The tag's type.
        is: TagType,
        /// The user.
        user: UserId,
        /// What the type takes.
        takes: &'static str,
    },
    /// A number tag would leave its range.
    #[error(
        "incrementing {is} tag '{tag}' of user {user} from {from} by {by} leaves the 64-bit range; set or unset it first"
    )]
    Overflow {
        /// The tag.
        tag: String,
        /// The tag's type.
        is: TagType,
        /// The user.
        user: UserId,
        /// The value so far.
        from: Box<TagValue>,
        /// The increment.
        by: Box<TagValue>,
    },
    /// The update has no event time.
    #[error("the update of user {user} has no event time; give it one with at(ms)")]
    NoTime {
        /// The user.
        user: UserId,
    },
    /// The user belongs to a writer of other key groups.
    #[error(
        "user {user} is in key group {group}, outside this writer's {start}..{end}; key the stream by the user id"
    )]
    WrongKeyGroup {
        /// The user.
        user: UserId,
        /// The user's key group.
        group: KeyGroup,
        /// First key group of the writer.
        start: u16,
        /// One past its last.
        end: u16,
    },
    /// The key group holds as many users as its ordinals can name.
    #[error(
        "key group {group} is full with {users} users, so user {user} has no ordinal left; use fewer key groups"
    )]
    Full {
        /// The key group.
        group: KeyGroup,
        /// How many users it holds.
        users: u32,
        /// The user refused.
        user: UserId,
    },
    /// Another live writer owns some of the key groups.
    #[error(
        "key group {group} of profile '{space}' is already owned by a live writer of attempt {attempt}; drop that one first"
    )]
    Claimed {
        /// The first key group that is taken.
        group: KeyGroup,
        /// The profile space.
        space: String,
        /// The owner's attempt.
        attempt: u32,
    },
    /// The writer has no store to be frozen into.
    #[error("the writer of profile '{space}' keeps nothing; make it with restore_writer to freeze it")]
    NotKept {
        /// The profile space.
        space: String,
    },
    /// A segment would be a part of itself.
    #[error(
        "segment '{segment}' would be a part of itself: it names '{through}', which comes back to it; define it without that"
    )]
    SegmentCycle {
        /// The segment.
        segment: String,
        /// The segment named that leads back.
        through: String,
    },
    /// Other segments are defined by it.
    #[error("segment '{segment}' is named by segment '{by}'; change or drop that one first")]
    SegmentUsed {
        /// The segment.
        segment: String,
        /// One that names it.
        by: String,
    },
    /// A tag cannot go, for a segment asks for it, or would ask for something else.
    #[error("tag '{tag}' is named by segment '{by}'; change or drop that one first")]
    TagUsed {
        /// The tag.
        tag: String,
        /// A segment that names it.
        by: String,
    },
    /// The condition of a segment cannot be asked.
    #[error("segment '{segment}' cannot be defined: {problem}")]
    BadSegment {
        /// The segment.
        segment: String,
        /// What is wrong with its condition.
        problem: Box<QueryError>,
    },
    /// A name is empty, or longer than the index keeps.
    #[error("a tag or segment cannot be called '{name}'; give it a name of 1 to {most} bytes")]
    BadName {
        /// The name.
        name: String,
        /// How long it may be.
        most: usize,
    },
    /// The journal of writes cannot be read or written.
    #[error("the journal of writes {path} failed: {reason}")]
    Journal {
        /// Where it is, if that is not in the reason.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// The key groups asked for do not exist.
    #[error("key groups {start}..{end} are not within 0..{groups} of profile '{space}'; use key_groups_of")]
    NoSuchGroups {
        /// First key group asked for.
        start: u16,
        /// One past the last.
        end: u16,
        /// How many there are.
        groups: u16,
        /// The profile space.
        space: String,
    },
}

/// Why profiles could not be restored. No writer was made; the key groups are free again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The key groups cannot be claimed, or the space is not well defined.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The store refused, or could not be read.
    #[error(transparent)]
    State(#[from] StateError),
    /// A tag is stored with another type than the job gives it.
    #[error(
        "tag '{tag}' of profile '{space}' is {wanted} in the job but {stored} in the checkpoint; define it as {stored}, or give \
         the {wanted} tag another name"
    )]
    TagType {
        /// The tag.
        tag: String,
        /// The profile space.
        space: String,
        /// The type it has in the checkpoint.
        stored: TagType,
        /// The type the job gives it.
        wanted: TagType,
    },
    /// What was changed of tags and segments at run time cannot be read.
    #[error(
        "profile '{space}': the catalogue of the checkpoint is damaged ({reason}); restore from another checkpoint or savepoint"
    )]
    Catalogue {
        /// The profile space.
        space: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The job's profile has another number of key groups than its state.
    #[error(
        "profile '{space}' has {groups} key groups and the store {stored}; make it with Profiles::with_key_groups(name, {stored})"
    )]
    KeyGroups {
        /// The profile space.
        space: String,
        /// How many it has.
        groups: u16,
        /// How many the store has.
        stored: u16,
    },
    /// A piece was written by a version of Weir that knows more.
    #[error(
        "profile '{space}', key group {group}: {what} has format {found}, and this build reads {known}; use the build that \
         wrote it or a newer one"
    )]
    Format {
        /// The profile space.
        space: String,
        /// The key group.
        group: KeyGroup,
        /// The piece: part, tag and page.
        what: String,
        /// Its format.
        found: u8,
        /// The format known here.
        known: u8,
    },
    /// A piece is not what was written.
    #[error(
        "profile '{space}', key group {group}: {what} is damaged ({reason}); restore from another checkpoint or savepoint"
    )]
    Damaged {
        /// The profile space.
        space: String,
        /// The key group.
        group: KeyGroup,
        /// The piece: part, tag and page.
        what: String,
        /// What is wrong with it.
        reason: &'static str,
    },
}

/// Why a query was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// The tag is not defined.
    #[error("tag '{tag}' is not known to profile '{space}'; known tags: {known}")]
    UnknownTag {
        /// The tag asked for.
        tag: String,
        /// The profile space.
        space: String,
        /// The tags there are.
        known: String,
    },
    /// The segment is not registered.
    #[error("segment '{segment}' is not known to profile '{space}'; known segments: {known}")]
    UnknownSegment {
        /// The segment asked for.
        segment: String,
        /// The profile space.
        space: String,
        /// The segments there are.
        known: String,
    },
    /// The condition does not fit the tag's type.
    #[error("{condition} does not fit {is} tag '{tag}'; {is} tags take {takes}")]
    Mismatch {
        /// The condition, as text.
        condition: String,
        /// The tag.
        tag: String,
        /// The tag's type.
        is: TagType,
        /// The conditions the type takes.
        takes: &'static str,
    },
    /// The text is not an expression.
    #[error("this cannot be read: {reason}")]
    Syntax {
        /// What the parser said.
        reason: String,
    },
    /// The text is an expression, but not one of ours.
    #[error("{piece} is not supported here; supported are {supported}")]
    Unsupported {
        /// The piece in question.
        piece: String,
        /// What there is instead.
        supported: &'static str,
    },
    /// What is wrong, and where in the text that begins.
    #[error("line {line}, column {column}: {problem}")]
    At {
        /// The line, from 1.
        line: u64,
        /// The column, from 1.
        column: u64,
        /// What is wrong there.
        problem: Box<QueryError>,
    },
    /// One user has more than an answer may have.
    #[error("the row of user {user} alone has over {limit} values; ask for fewer columns")]
    RowTooLarge {
        /// The user.
        user: UserId,
        /// Values that an answer has at most.
        limit: usize,
    },
    /// There is no such table.
    #[error("table '{table}' is not known; known tables: {known}")]
    UnknownTable {
        /// The table asked for.
        table: String,
        /// The tables there are.
        known: String,
    },
    /// No version was complete up to an event time soon enough.
    #[error(
        "profile '{space}' is complete up to event time {is} and not yet up to {wanted}, after waiting {waited_ms} ms; ask again later, or for an \
         earlier time"
    )]
    NotYet {
        /// The profile space.
        space: String,
        /// The event time asked for, in ms since the epoch.
        wanted: i64,
        /// The one there is.
        is: i64,
        /// How long was waited for it.
        waited_ms: u64,
    },
    /// No version of a completed checkpoint is there.
    #[error("profile '{space}' has no version of a completed checkpoint {why}")]
    NoCheckpoint {
        /// The profile space.
        space: String,
        /// Why not, and what to do.
        why: &'static str,
    },
    /// The condition is too large to be evaluated safely.
    #[error("the condition has {what} {size}, the limit is {limit}; split it or use in / hasAny lists")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// How large it is.
        size: usize,
        /// The limit.
        limit: usize,
    },
}
