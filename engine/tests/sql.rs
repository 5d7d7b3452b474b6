//! Statements and pages of lists over HTTP: answers as JSON with their version, refusals with their place.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;

use common::ask;
use weir_engine::http::HttpPort;
use weir_state::profile::{Decimal, ProfileUpdate, Profiles, TagType};

#[test]
fn statements_are_answered_and_refused_with_their_place() {
    let profiles = Profiles::named("crowd")
        .key_column("uuid")
        .tag("b.score", TagType::Float)
        .tag("b.price", TagType::Decimal(2))
        .tag("b.watched", TagType::Set)
        .tag("b.shops", TagType::IntSet)
        .tag("b.vip", TagType::Bool)
        .tag("b.born", TagType::Date);
    let mut writer = profiles.writer(0..profiles.key_groups(), 1).unwrap();
    let update = ProfileUpdate::of(7u64)
        .at(5)
        .set("b.score", f64::INFINITY)
        .set("b.price", Decimal::new(1250, 2))
        .add("b.watched", "TSLA")
        .add("b.shops", 3)
        .set("b.born", "2001-02-03");
    writer.apply(update).unwrap();
    writer.finish(5);
    let serving = HttpPort::bind("127.0.0.1:0").unwrap().profiles(&profiles).serve().unwrap();
    let post = |text: &str| ask(serving.address(), "POST /sql", text);

    let (status, answer) = post("select * from b where hasAny(watched, ['TSLA']) and price > '12.4'");
    assert_eq!(status, 200, "{answer}");
    let columns = ["uuid", "score", "price", "watched", "shops", "vip", "born"];
    assert_eq!(answer["columns"], serde_json::json!(columns));
    let row = serde_json::json!([7, "inf", "12.50", ["TSLA"], [3], null, "2001-02-03"]);
    assert_eq!(answer["rows"], serde_json::json!([row]));
    assert_eq!(answer["version"]["watermark"], 5);
    assert_eq!(answer["notes"][0], "'12.4' was read as 12.4, since the tag is decimal(2)");

    let (status, answer) = ask(serving.address(), "GET /sql?q=select%20count()%20from%20b", "");
    assert_eq!((status, &answer["rows"]), (200, &serde_json::json!([[1]])));
    let (status, answer) = post("select count() from b where lower(watched) = 'x'");
    let error = answer["error"].as_str().unwrap();
    assert!(status == 400 && error.starts_with("line 1, column 29: 'lower(watched)"), "{error}");
    assert_eq!(ask(serving.address(), "GET /sql", "").0, 400);
    assert_eq!(post(&format!("select '{}'", "x".repeat(70_000))).0, 400);
}

#[test]
fn pages_are_of_one_version_while_it_changes() {
    let profiles = Profiles::named("crowd").int_tag("n");
    let mut writer = profiles.writer(0..profiles.key_groups(), 1).unwrap();
    let of = |user: u64, n: i64| ProfileUpdate::of(user).at(n).set("n", n);
    for user in 0..95u64 {
        writer.apply(of(user, 1)).unwrap();
    }
    writer.publish(1);
    let serving = HttpPort::bind("127.0.0.1:0").unwrap().profiles(&profiles).serve().unwrap();
    let get = |path: &str| ask(serving.address(), &format!("GET {path}"), "");
    let expected: Vec<serde_json::Value> =
        get("/segments/ids?q=n%20=%201&limit=100").1["ids"].as_array().unwrap().clone();
    assert_eq!(expected.len(), 95);

    let (mut path, mut seen, mut last) =
        ("/segments/ids?q=n%20=%201&pin=true&limit=10".to_owned(), Vec::new(), None);
    for page in 0.. {
        let (status, answer) = get(&path);
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["version"]["sequence"], 1);
        seen.extend(answer["ids"].as_array().unwrap().clone());
        let Some(next) = answer["next"].as_str() else {
            assert_eq!(page, 9);
            break;
        };
        path = format!("/segments/ids?page={next}&limit=10");
        last = Some(path.clone());
        // Half of them leave and others come, page after page.
        for user in 0..50u64 {
            writer.apply(of(user, 2)).unwrap();
        }
        for user in 0..20u64 {
            writer.apply(of(1_000 + page * 20 + user, 1)).unwrap();
        }
        writer.publish(2);
    }
    assert_eq!(seen, expected);
    assert_eq!(
        get(&last.unwrap()).1["ids"],
        serde_json::json!(expected[90..]),
        "asked again, it is there again"
    );
    assert_eq!(get("/segments/count?q=n%20=%201").1["count"], 45 + 9 * 20);

    let (status, answer) = get("/segments/explain?q=n%20=%201%20and%20n%20=%202");
    assert_eq!((status, &answer["explained"]["users"]), (200, &serde_json::json!(0)), "{answer}");
    assert_eq!(answer["explained"]["parts"][1]["users"], 50);

    let (_, top) = get("/segments/top?q=n%20%3E%200&tag=n&limit=1");
    assert_eq!(top["top"][0], serde_json::json!({"value": 1, "users": 225, "everyone": 225, "lift": 1.0}));
    let (_, numbers) = get("/segments/numbers?q=n%20%3E%200&tag=n&percentiles=50,100");
    assert_eq!(
        (&numbers["users"], &numbers["sum"]),
        (&serde_json::json!(275), &serde_json::json!(325)),
        "{numbers}"
    );
    assert_eq!(numbers["percentiles"], serde_json::json!([[50.0, 1], [100.0, 2]]));
    let (_, overlap) = get("/segments/overlap?q=n%20=%201&with=n%20%3C%203");
    assert_eq!((&overlap["both"], &overlap["either"]), (&serde_json::json!(225), &serde_json::json!(275)));
    for wrong in ["top?q=n%20=%201", "numbers?q=n%20=%201&tag=n&percentiles=101", "overlap?q=n%20=%201"] {
        assert_eq!(get(&format!("/segments/{wrong}")).0, 400, "{wrong}");
    }

    let gone = get("/segments/ids?page=0000000000000000.10");
    assert_eq!(gone.0, 410, "{gone:?}");
    for wrong in
        ["page=7", "page=0000000000000000.10&q=n%20=%201", "q=n%20=%201&pin=true&limit=0", "pin=true"]
    {
        assert_eq!(get(&format!("/segments/ids?{wrong}")).0, 400, "{wrong}");
    }
    assert_eq!(get("/segments/ids?q=n%20=%201&pin=true&limit=10000").1.get("next"), None, "all on one page");
}

#[test]
fn those_who_begin_lists_shut_nobody_out_and_the_last_page_may_be_left_again() {
    let profiles = Profiles::named("crowd").int_tag("n");
    let mut writer = profiles.writer(0..profiles.key_groups(), 1).unwrap();
    for user in 0..6u64 {
        writer.apply(ProfileUpdate::of(user).at(1).set("n", 1)).unwrap();
    }
    writer.publish(1);
    let serving = HttpPort::bind("127.0.0.1:0").unwrap().profiles(&profiles).serve().unwrap();
    let get = |path: &str| ask(serving.address(), &format!("GET /segments/ids?{path}"), "");
    let begin = || {
        let (status, answer) = get("q=n%20=%201&pin=true&limit=2");
        assert_eq!(status, 200, "{answer}");
        answer["next"].as_str().unwrap().to_owned()
    };
    let (reading, left) = (begin(), begin());
    let (list, _) = reading.split_once('.').unwrap();
    let beyond = format!("page={list}.99999999&limit=2");
    for begun in 0..200 {
        begin();
        // Whoever reads on keeps the place, though now and then the end is read.
        assert_eq!(get(&beyond).1["ids"], serde_json::json!([]), "{begun}");
        let (status, answer) = get(&format!("page={reading}&limit=2"));
        assert_eq!((status, answer["ids"].as_array().unwrap().len()), (200, 2), "{begun}: {answer}");
    }
    let (status, answer) = get(&format!("page={left}&limit=2"));
    assert!(status == 410 && answer["error"].as_str().unwrap().contains("begin again"), "{answer}");
}

#[test]
fn numbers_that_json_has_not_are_texts_and_what_costs_too_much_is_refused() {
    let profiles = Profiles::named("crowd").tag("f", TagType::Float).tag("u", TagType::UInt);
    let mut writer = profiles.writer(0..profiles.key_groups(), 1).unwrap();
    for (user, f) in [(1u64, f64::INFINITY), (2, 1.0)] {
        writer.apply(ProfileUpdate::of(user).at(1).set("f", f).set("u", i64::MAX)).unwrap();
    }
    writer.publish(1);
    let serving = HttpPort::bind("127.0.0.1:0").unwrap().profiles(&profiles).serve().unwrap();
    let get = |path: &str| ask(serving.address(), &format!("GET /segments/{path}"), "");
    let (_, numbers) = get("numbers?q=f%20%3E%200&tag=f");
    assert_eq!(
        (&numbers["sum"], &numbers["mean"]),
        (&serde_json::json!("inf"), &serde_json::json!("inf")),
        "{numbers}"
    );
    let (_, numbers) = get("numbers?q=f%20%3E%200&tag=u");
    assert_eq!(numbers["sum"], u64::MAX - 1, "{numbers}");
    let (_, none) = get("numbers?q=f%20%3C%200&tag=f");
    assert_eq!((&none["sum"], &none["mean"]), (&serde_json::Value::Null, &serde_json::Value::Null));
    let part = "%20u=1%20and%20u=1%20and%20u=1%20and%20u=1";
    let nested = (0..40).fold("u=1".to_owned(), |inner, level| {
        format!("({inner})%20{}{part}", if level % 2 == 0 { "or" } else { "and" })
    });
    assert_eq!(get(&format!("count?q={nested}")).0, 200);
    let (status, answer) = get(&format!("explain?q={nested}"));
    assert!(status == 400 && answer["error"].as_str().unwrap().contains("the limit is 1000"), "{answer}");
}

#[test]
fn the_description_is_of_the_routes_there_are() {
    let profiles = Profiles::named("p").int_tag("n");
    let mut writer = profiles.writer(0..profiles.key_groups(), 1).unwrap();
    for user in 1..=2u64 {
        writer.apply(ProfileUpdate::of(user).at(1).set("n", user)).unwrap();
    }
    writer.publish(1);
    let serving = HttpPort::bind("127.0.0.1:0").unwrap().profiles(&profiles).serve().unwrap();
    let (status, described) = ask(serving.address(), "GET /openapi.json", "");
    assert_eq!((status, &described["openapi"]), (200, &serde_json::json!("3.1.0")));
    let mut connection = TcpStream::connect(serving.address()).unwrap();
    connection.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut index = String::new();
    connection.read_to_string(&mut index).unwrap();
    let paths = described["paths"].as_object().unwrap();
    for (path, methods) in paths {
        for (method, route) in methods.as_object().unwrap() {
            // Text is not read as JSON by `ask`: these two answer with text.
            if !["/", "/metrics"].contains(&path.as_str()) {
                let path = path.replace("{user}", "1").replace("{name}", "x");
                let request = format!("{} {path}", method.to_uppercase());
                let (status, answer) = ask(serving.address(), &request, "");
                let told = answer["error"].as_str().unwrap_or_default();
                assert!(!told.contains("no such route"), "{request}: {answer}");
                assert!(
                    route["responses"].get(status.to_string()).is_some(),
                    "{request} gave {status}: {answer}"
                );
            }
        }
        let listed = path == "/" || index.contains(&path.replace("{user}", "USER").replace("{name}", "NAME"));
        assert!(listed, "{path} is not in the list of routes");
    }
    let routes = index.lines().filter_map(|line| line.strip_prefix("GET "));
    for route in routes.filter(|line| line.starts_with('/') && !line.contains("HTTP/1.1")) {
        let path = route.split(['?', ' ']).next().unwrap().replace("USER", "{user}");
        assert!(paths.contains_key(&path), "{path} is not described");
    }
    let (status, answer) = ask(serving.address(), "GET /plan?format=a&format=b", "");
    assert!(status == 400 && answer["error"].is_string(), "{answer}");
    // What the examples of an answer have is what is described.
    for (path, request) in [
        ("/segments/count", "GET /segments/count?q=n%20%3E%200"),
        ("/segments/ids", "GET /segments/ids?q=n%20%3E%200&pin=true&limit=1"),
        ("/segments/explain", "GET /segments/explain?q=n%20%3E%200"),
        ("/segments/top", "GET /segments/top?q=n%20%3E%200&tag=n"),
        ("/segments/numbers", "GET /segments/numbers?q=n%20%3E%200&tag=n&percentiles=50"),
        ("/segments/overlap", "GET /segments/overlap?q=n%20%3E%200&with=n%20%3E%201"),
        ("/sql", "GET /sql?q=select%20*%20from%20p"),
        ("/profiles/{user}", "GET /profiles/1"),
    ] {
        let (status, answer) = ask(serving.address(), request, "");
        assert_eq!(status, 200, "{request}: {answer}");
        let content = &described["paths"][path]["get"]["responses"]["200"]["content"];
        fits(&described, &content["application/json"]["schema"], &answer, request);
    }
}

/// Every field of an answer is described, and what is required is there; in lists and objects within it too.
fn fits(described: &serde_json::Value, schema: &serde_json::Value, answer: &serde_json::Value, place: &str) {
    if let Some(name) = schema["$ref"].as_str() {
        let named = described.pointer(name.trim_start_matches('#')).expect("what is referred to");
        return fits(described, named, answer, place);
    }
    if let (Some(all), items) = (answer.as_array(), &schema["items"])
        && items.is_object()
    {
        return all.iter().for_each(|one| fits(described, items, one, place));
    }
    let Some(properties) = schema["properties"].as_object() else { return };
    let fields = answer.as_object().unwrap_or_else(|| panic!("{place}: {answer} is no object"));
    for (field, value) in fields {
        let schema = properties.get(field).unwrap_or_else(|| panic!("{place}: {field} is not described"));
        fits(described, schema, value, place);
    }
    for field in schema["required"].as_array().into_iter().flatten() {
        assert!(fields.contains_key(field.as_str().expect("a name")), "{place}: {field} is not answered");
    }
}
