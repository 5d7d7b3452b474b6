//! What a restored table and its declaration come to, and the words of each refusal.

use std::time::Duration;

use super::*;

const NOW: Now = Now { wall: 5_000, event: i64::MIN };

fn meta(name: &str, oldest: u32, version: u32) -> TableMeta {
    let codec = CodecId::BINCODE;
    TableMeta { oldest, key_codec: codec, value_codec: codec, ..TableMeta::raw(name, version) }
}

fn restored(metas: &[TableMeta]) -> Tables {
    let mut tables = Tables::new("totals");
    tables.restore(metas).unwrap();
    tables
}

fn refusal(held: TableMeta, declared: TableMeta) -> String {
    restored(&[held]).register(declared, NOW).unwrap_err().to_string()
}

#[test]
fn tables_are_numbered_in_order_and_keep_their_numbers() {
    let mut tables = Tables::new("totals");
    assert_eq!(tables.register(meta("a", 1, 1), NOW).unwrap().id, 0);
    assert_eq!(tables.register(meta("b", 1, 1), NOW).unwrap().id, 1);
    let held: Vec<TableMeta> = tables.metas().cloned().collect();

    let mut again = restored(&held);
    assert_eq!(again.unclaimed(), ["a", "b"]);
    assert_eq!(again.register(meta("b", 1, 1), NOW).unwrap().id, 1);
    assert_eq!(again.register(meta("c", 1, 1), NOW).unwrap().id, 2);
    assert_eq!(again.unclaimed(), ["a"]);
    assert_eq!(again.remove("a"), Some(0));
    assert_eq!(again.remove("a"), None);
    assert!(again.unclaimed().is_empty());
}

#[test]
fn parts_that_numbered_their_tables_differently_are_renumbered() {
    let (a, b) = (meta("a", 1, 1), TableMeta { id: 1, ..meta("b", 1, 1) });
    let mut tables = Tables::new("totals");
    assert_eq!(tables.restore(&[a.clone(), b.clone()]).unwrap(), [(0, 0), (1, 1)].into());
    let (a, b) = (TableMeta { id: 1, ..a }, TableMeta { id: 0, ..b });
    assert_eq!(tables.restore(&[a.clone(), b]).unwrap(), [(0, 1), (1, 0)].into());
    let error = tables.restore(&[TableMeta { version: 2, ..a }]).unwrap_err().to_string();
    assert!(error.contains("operator 'totals', table 'a': two parts of one checkpoint"), "{error}");
}

#[test]
fn a_table_declared_twice_is_refused() {
    let mut tables = Tables::new("totals");
    tables.register(meta("a", 1, 1), NOW).unwrap();
    let error = tables.register(meta("a", 1, 1), NOW).unwrap_err().to_string();
    assert_eq!(
        error,
        "operator 'totals', table 'a': it is declared twice: give each state of an operator a name of its own"
    );
}

#[test]
fn refusals_name_the_uid_the_table_the_versions_and_the_fix() {
    assert_eq!(
        refusal(meta("sum", 1, 3), meta("sum", 1, 2)),
        "operator 'totals', table 'sum': the checkpoint has version 3, the job declares version 2; declare version 3 \
         again, or restore from a savepoint with version 2 or older"
    );
    assert_eq!(
        refusal(meta("sum", 1, 2), meta("sum", 2, 3)),
        "operator 'totals', table 'sum': the checkpoint may hold values of version 1, the job reads versions 2 to 3; begin \
         the chain of versions at 1 with Schema::after"
    );
    assert_eq!(
        refusal(meta("sum", 1, 1), TableMeta { key_codec: CodecId::POSTCARD, ..meta("sum", 1, 1) }),
        "operator 'totals', table 'sum': the checkpoint has its keys in bincode, the job declares postcard; a key codec \
         cannot change: declare the old one, or give the table another name and drop this one"
    );
    assert_eq!(
        refusal(meta("sum", 1, 1), TableMeta { value_codec: CodecId::RAW, ..meta("sum", 1, 1) }),
        "operator 'totals', table 'sum': the checkpoint has its values in bincode, the job declares a layout of its own; \
         give the table another name and drop this one"
    );
}

#[test]
fn an_older_version_and_another_value_codec_are_taken_on() {
    let mut tables = restored(&[meta("sum", 1, 1)]);
    let declared = TableMeta { value_codec: CodecId::POSTCARD, ..meta("sum", 1, 3) };
    let now = tables.register(declared, NOW).unwrap();
    assert_eq!((now.oldest, now.version, now.value_codec), (1, 3, CodecId::POSTCARD));
}

#[test]
fn e33_a_ttl_turned_on_adopts_what_is_there_and_off_lets_it_live() {
    let hour = Duration::from_secs(3_600);
    let with = |ttl: Option<Ttl>, adopted_at| TableMeta { ttl, adopted_at, ..meta("sum", 1, 1) };
    let adopted = |held, declared| restored(&[held]).register(declared, NOW).unwrap().adopted_at;
    let wall = Some(Ttl::processing_time(hour));
    let event = Some(Ttl::event_time(hour));

    assert_eq!(adopted(with(None, None), with(wall, None)), Some(5_000));
    assert_eq!(adopted(with(wall, Some(3)), with(wall, None)), Some(3), "it was on before");
    assert_eq!(adopted(with(wall, None), with(wall, None)), None);
    assert_eq!(adopted(with(wall, Some(3)), with(None, None)), None, "turned off");
    assert_eq!(adopted(with(event, Some(3)), with(wall, None)), Some(5_000), "another clock");
    let longer = Some(Ttl::processing_time(2 * hour));
    assert_eq!(adopted(with(wall, Some(3)), with(longer, None)), Some(3));

    // Event time has not begun: what is there counts from when it does.
    let mut tables = restored(&[with(None, None)]);
    assert_eq!(tables.register(with(event, None), NOW).unwrap().adopted_at, Some(i64::MAX));
    tables.event_time_begins(700);
    assert_eq!(tables.metas().next().unwrap().adopted_at, Some(700));
}
