//! One key group of several chunks: long value lists, full columns, pages and updates across chunk borders.

use super::super::*;

const USERS: u64 = 150_000;

/// Values follow from the user number and the round, so that any count can be worked out.
fn update(user: u64, round: u64) -> ProfileUpdate {
    ProfileUpdate::of(user)
        .at(round as i64)
        .set("third", ["a", "b", "c"][((user + round) % 3) as usize])
        .set("rare", ((user + round) % 1_000).to_string())
        .set("s", [format!("{}", user % 2), format!("x{}", (user + round) % 50)].to_vec())
        .set("n", user + round)
}

#[test]
fn counts_and_pages_across_chunks() {
    let profiles =
        Profiles::with_key_groups("p", 1).enum_tag("third").enum_tag("rare").set_tag("s").int_tag("n");
    let mut writer = profiles.writer(0..1, 1).unwrap();
    let mut pinned = Vec::new();
    for round in 0..2 {
        for user in 0..USERS {
            writer.apply(update(user, round)).unwrap();
            if user % 40_000 == 0 {
                writer.publish(0);
                pinned.push(profiles.reader().snapshot());
            }
        }
    }
    writer.publish(1);
    let snapshot = profiles.reader().snapshot();
    let check = |text: &str, holds: &dyn Fn(u64) -> bool| {
        let predicate = Predicate::parse(text).unwrap();
        let expected: Vec<u64> = (0..USERS).filter(|u| holds(*u)).collect();
        assert_eq!(snapshot.count(&predicate).unwrap().value, expected.len() as u64, "{text}");
        for offset in [0, 7, expected.len() as u64 / 2, expected.len() as u64] {
            let page = snapshot.ids(&predicate, Page { offset, limit: 90_000 }).unwrap().value;
            let wanted = expected.iter().skip(offset as usize).take(90_000);
            assert!(page.into_iter().eq(wanted.map(|u| UserId::from(*u))), "{text} from {offset}");
        }
    };
    let (third, rare, n) = (|u: u64| (u + 1) % 3, |u: u64| (u + 1) % 1_000, |u: u64| u + 1);
    check("third = 'a'", &|u| third(u) == 0);
    // Ands of nothing but bits, up to and beyond what one loop takes: the same values again and again are values too.
    let bits = ["third = 'a'", "hasAny(s, ['1'])", "hasAny(s, ['0', '1'])"];
    check("third = 'a' and hasAny(s, ['1'])", &|u| third(u) == 0 && u % 2 == 1);
    for parts in 2..=9 {
        let all: Vec<&str> = (0..parts).map(|i| bits[i % 2]).collect();
        check(&all.join(" and "), &|u| third(u) == 0 && u % 2 == 1);
        let all: Vec<&str> = (0..parts).map(|i| bits[i % 3]).collect();
        let odd = parts > 1;
        check(&all.join(" and "), &|u| third(u) == 0 && (!odd || u % 2 == 1));
        let mut all = vec!["hasAny(s, ['1'])"; parts];
        all[parts - 1] = "hasAny(s, ['0'])";
        check(&all.join(" and "), &|_| false);
    }
    check("third = 'a' and n >= 65537", &|u| third(u) == 0 && n(u) >= 65_537);
    check("third != 'a' and rare = '7'", &|u| third(u) != 0 && rare(u) == 7);
    check("rare in ('7', '8', '999') and n < 70000", &|u| [7, 8, 999].contains(&rare(u)) && n(u) < 70_000);
    check("not rare = '7' and not third in ('a', 'b')", &|u| rare(u) != 7 && third(u) == 2);
    check("hasAll(s, ['1', 'x49'])", &|u| u % 2 == 1 && (u + 1) % 50 == 49);
    check("hasAny(s, ['0', 'x49']) and n between 100 and 140000", &|u| {
        (u % 2 == 0 || (u + 1) % 50 == 49) && (100..=140_000).contains(&n(u))
    });
    check("n > 150000 or n <= 1 or third = 'nobody'", &|u| n(u) > 150_000 || n(u) <= 1);
    check("true", &|_| true);
    check("n not in (5, 65536, 65537)", &|u| ![5, 65_536, 65_537].contains(&n(u)));
    for user in [0, 65_535, 65_536, 131_071, 131_072, USERS - 1] {
        let profile = snapshot.profile(&user.into()).value.unwrap();
        assert_eq!(profile["n"], TagValue::Int(n(user) as i64));
        assert_eq!(profile["rare"], TagValue::Text(rare(user).to_string()));
        assert_eq!(profile["s"], [&*format!("{}", user % 2), &*format!("x{}", (user + 1) % 50)].into());
    }
    // Every version is still what it was: users so far, each with exactly one third.
    for old in pinned {
        let thirds: u64 =
            ["a", "b", "c"].iter().map(|t| old.count(&tag("third").eq(*t)).unwrap().value).sum();
        assert_eq!(thirds, old.users());
        assert_eq!(old.count(&Predicate::all()).unwrap().value, old.users());
    }
}
