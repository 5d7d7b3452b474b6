//! What explain says of each part is what counting that part alone says, and what it reads is what the index has.

use super::super::*;

#[test]
fn every_part_is_counted_alone_and_says_what_it_reads() {
    let profiles =
        Profiles::with_key_groups("p", 1).enum_tag("city").set_tag("s").int_tag("n").tag("few", TagType::Int);
    let mut writer = profiles.writer(0..1, 1).unwrap();
    for user in 0..70_000u64 {
        let update = ProfileUpdate::of(user)
            .at(1)
            .set("city", if user < 50 { "small".to_owned() } else { format!("c{}", user % 2) })
            .set("s", ["all"])
            .set("n", user)
            .set("few", user % 7);
        writer.apply(update).unwrap();
    }
    writer.publish(1);
    let snapshot = profiles.reader().snapshot();
    let inner = tag("n").between(10, 59).or(tag("few").is_in([1, 2]));
    let parts = [
        tag("city").eq("c0"),
        tag("city").eq("small"),
        tag("city").is_in(["c0", "small"]),
        inner.clone(),
        !tag("n").is_in([5, 70_000]),
        Predicate::at_least(1, [tag("s").size_between(1, 1)]),
        Predicate::users([3u64, 4, 99_999]),
        Predicate::all(),
    ];
    let whole = parts.iter().cloned().reduce(Predicate::and).unwrap();
    let explained = snapshot.explain(&whole).unwrap().value;
    assert_eq!(
        (explained.condition.as_str(), explained.users),
        ("and", snapshot.count(&whole).unwrap().value)
    );
    for (part, told) in parts.iter().zip(&explained.parts) {
        assert_eq!(told.users, snapshot.count(part).unwrap().value, "{told:?}");
        assert_eq!(told.reads.values().sum::<u64>(), 2, "two chunks: {told:?}");
    }
    let told: Vec<(&str, u64, String)> = (explained.parts.iter())
        .map(|p| {
            (
                p.condition.as_str(),
                p.users,
                p.reads.iter().map(|(k, v)| format!("{k} {v}")).collect::<Vec<_>>().join(", "),
            )
        })
        .collect();
    let of = |condition, users, reads: &str| (condition, users, reads.to_owned());
    assert_eq!(
        told,
        [
            of("city = 'c0'", 34_975, "bits 2"),
            of("city = 'small'", 50, "list 1, nothing 1"),
            of("city in ('c0', 'small')", 35_025, "bits 1, union 1"),
            of("or", snapshot.count(&inner).unwrap().value, "combined 2"),
            of("not", 69_999, "combined 2"),
            of("at least 1 of 1", 70_000, "combined 2"),
            of("one of 3 users", 2, "ids 1, nothing 1"),
            of("everyone", 70_000, "nothing 2"),
        ]
    );
    let or = &explained.parts[3].parts;
    assert_eq!((or[0].condition.as_str(), or[0].users), ("n between 10 and 59", 50));
    assert!(or[0].reads.contains_key("bins") && or[1].reads.contains_key("union"), "{or:?}");
    assert!(snapshot.explain(&tag("nope").exists()).is_err());
    let deep = (0..300)
        .fold(tag("n").eq(1), |p, i| if i % 2 == 0 { p.and(tag("n").eq(1)) } else { p.or(tag("n").eq(1)) });
    assert!(snapshot.explain(&deep).is_err());
}

#[test]
fn what_would_be_counted_too_often_is_refused_and_a_long_list_is_not() {
    let profiles = Profiles::with_key_groups("p", 2).enum_tag("a").int_tag("n");
    let mut writer = profiles.writer(0..2, 1).unwrap();
    for user in 0..100u64 {
        writer.apply(ProfileUpdate::of(user).at(1).set("a", format!("x{user}")).set("n", user)).unwrap();
    }
    writer.publish(1);
    let snapshot = profiles.reader().snapshot();
    let leaf = |n: usize| tag("a").starts_with(format!("x{n}"));
    let flat = (1..500).map(leaf).fold(leaf(0), Predicate::or);
    let explained = snapshot.explain(&flat).unwrap().value;
    assert_eq!((explained.users, explained.parts.len()), (100, 500));
    assert_eq!((explained.parts[7].users, explained.parts[70].users), (11, 1));
    let error = snapshot.explain(&flat.or(leaf(500))).unwrap_err().to_string();
    assert!(error.contains("parts, each as often as it is nested: 1002, the limit is 1000"), "{error}");
    // 44 levels of seven each: a condition within 1,024 words, and each part counted at every level around it.
    let level = |inner: Predicate, n: usize| {
        let part = |i: usize| leaf(n * 7 + i);
        if n.is_multiple_of(2) {
            (0..7).map(part).fold(inner, Predicate::or)
        } else {
            (0..7).map(part).fold(inner, Predicate::and)
        }
    };
    let nested = (0..44).fold(leaf(0), level);
    assert!(snapshot.count(&nested).is_ok());
    let error = snapshot.explain(&nested).unwrap_err().to_string();
    assert!(error.contains("the limit is 1000"), "{error}");
    // Nested a little, every part comes to what it comes to alone.
    let some = (0..6)
        .fold(leaf(1), level)
        .and(!tag("n").lt(50))
        .and(Predicate::at_least(1, [leaf(1), tag("n").lt(9)]));
    let explained = snapshot.explain(&some).unwrap().value;
    fn each(told: &Explained, predicate: &Predicate, snapshot: &Snapshot) {
        assert_eq!(told.users, snapshot.count(predicate).unwrap().value, "{told:?}");
        use super::super::predicate::Node;
        let parts: &[Predicate] = match &predicate.node {
            Node::And(parts) | Node::Or(parts) | Node::AtLeast(_, parts) => parts,
            Node::Not(inner) => std::slice::from_ref(inner),
            _ => &[],
        };
        assert_eq!(told.parts.len(), parts.len());
        told.parts.iter().zip(parts).for_each(|(told, part)| each(told, part, snapshot));
    }
    each(&explained, &some, &snapshot);
}
