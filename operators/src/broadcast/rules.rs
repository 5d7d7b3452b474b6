//! The rules that one subtask has: read back from the checkpoint whoever had written them, and written by the first subtask alone.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use weir_engine::{OperatorContext, Result, TaskError};
use weir_state::codec::CodecId;
use weir_state::schema::Schema;
use weir_state::store::Snapshot;

/// The list of the checkpoint that they are in, and their key.
const LIST: &str = "broadcast";
const RULES: &str = "rules";

/// Rules of one subtask.
pub(crate) struct Rules<T> {
    rules: T,
    schema: Schema<T>,
    /// All subtasks have the same rules at a barrier: one writes them.
    writes: bool,
    /// As they were written last, while they are the same.
    written: Option<Value>,
    uid: String,
}

impl<T: Default + Serialize + DeserializeOwned + 'static> Rules<T> {
    /// Those of the checkpoint, or the first ones.
    ///
    /// # Errors
    /// What the checkpoint holds is no such rules.
    pub(crate) fn open(cx: &OperatorContext, schema: Schema<T>) -> Result<Self> {
        let kept = cx.restored(LIST).into_iter().find(|item| item.key == RULES);
        let uid = cx.uid().to_string();
        let rules = match &kept {
            Some(item) => read(&schema, &item.value).map_err(|why| {
                TaskError::user(format!(
                    "the checkpoint has rules of operator '{uid}' that cannot be read: {why}; say in its schema what versions the \
                     type has had, or give it another uid"
                ))
            })?,
            None => T::default(),
        };
        Ok(Rules { rules, schema, writes: cx.subtask() == 0, written: None, uid })
    }

    #[inline]
    pub(crate) fn read(&self) -> &T {
        &self.rules
    }

    pub(crate) fn change(&mut self) -> &mut T {
        self.written = None;
        &mut self.rules
    }

    /// Adds the rules to the checkpoint.
    ///
    /// # Errors
    /// They cannot be written.
    pub(crate) fn keep(&mut self, into: &mut Snapshot) -> Result<()> {
        if !self.writes {
            return Ok(());
        }
        let written = match self.written.take() {
            Some(written) => written,
            None => self.write()?,
        };
        into.item(LIST, RULES, written.clone());
        self.written = Some(written);
        Ok(())
    }

    fn write(&self) -> Result<Value> {
        let mut bytes = Vec::new();
        let codec = CodecId::POSTCARD;
        codec.encode(&self.rules, &mut bytes).map_err(|error| {
            TaskError::user(format!("the rules of operator '{}' cannot be written: {error}", self.uid))
        })?;
        Ok(json!({ "version": self.schema.version(), "codec": codec.0, "bytes": hex(&bytes) }))
    }
}

fn read<T: DeserializeOwned + 'static>(schema: &Schema<T>, value: &Value) -> std::result::Result<T, String> {
    let number = |name: &str| value.get(name).and_then(Value::as_u64).ok_or_else(|| format!("no {name}"));
    let version = u32::try_from(number("version")?).map_err(|error| error.to_string())?;
    let codec = u16::try_from(number("codec")?).map_err(|error| error.to_string())?;
    let text = value.get("bytes").and_then(Value::as_str).ok_or("no bytes")?;
    let bytes = unhex(text).ok_or("what should be hexadecimal is not")?;
    schema.decode_version(version, CodecId(codec), &bytes).map_err(|error| error.to_string())
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |four: u8| char::from(DIGITS[usize::from(four & 15)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| char::from(c).to_digit(16);
    let byte = |pair: &[u8]| match pair {
        [high, low] => u8::try_from(digit(*high)? << 4 | digit(*low)?).ok(),
        _ => None,
    };
    text.as_bytes().chunks(2).map(byte).collect()
}

#[cold]
pub(crate) fn not_open() -> TaskError {
    TaskError::internal("a function with rules was used before it was open")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_from_hexadecimal() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(unhex(&hex(&bytes)).as_ref(), Some(&bytes));
        assert_eq!((unhex("0"), unhex("0g"), unhex("")), (None, None, Some(Vec::new())));
    }
}
