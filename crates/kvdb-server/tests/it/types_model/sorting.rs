//! The model's implementation of `SORT`.

use std::collections::VecDeque;

use env::Random;

use super::{Model, Value, WRONGTYPE};

/// A command with options at random, whose patterns meet keys and fields that there may be.
pub fn command(r: &mut Random, key: &str, other: &str) -> String {
    let mut one = |all: &[&'static str]| all[r.below(all.len() as u64) as usize];
    let by = one(&["", "", " BY *", " BY *->e1", " BY none"]);
    let limit = one(&["", "", " LIMIT 1 2", " LIMIT 0 -1"]);
    let get = one(&["", "", " GET # GET *", " GET *->e2"]);
    let order = one(&["", " DESC", " ASC"]);
    match one(&["SORT", "SORT", "SORT_RO"]) {
        "SORT" if one(&["", "STORE"]) == "STORE" => {
            format!("SORT {key}{by}{limit}{get}{order} ALPHA STORE {other}")
        }
        name => format!("{name} {key}{by}{limit}{get}{order} ALPHA"),
    }
}

#[derive(Default)]
struct Options<'a> {
    by: Option<&'a str>,
    get: Vec<&'a str>,
    limit: Option<(usize, i64)>,
    descending: bool,
    store: Option<&'a str>,
}

fn parse(words: &[String]) -> Options<'_> {
    let (mut options, mut words) = (Options::default(), words[2..].iter().map(String::as_str));
    while let Some(word) = words.next() {
        let mut next = || words.next().expect("an argument");
        match word {
            "BY" => options.by = Some(next()),
            "GET" => options.get.push(next()),
            "STORE" => options.store = Some(next()),
            "LIMIT" => {
                let (offset, count) = (next(), next());
                let offset = offset.parse().expect("a number");
                options.limit = Some((offset, count.parse().expect("a number")));
            }
            "DESC" => options.descending = true,
            "ASC" | "ALPHA" => {}
            other => panic!("SORT has no {other}"),
        }
    }
    options
}

fn look_up(model: &Model, pattern: &str, element: &str) -> Option<String> {
    if pattern == "#" {
        return Some(element.into());
    }
    let (key, field) = match pattern.split_once("->") {
        Some((key, field)) => (key, Some(field)),
        None => (pattern, None),
    };
    match (model.get(&key.replacen('*', element, 1)), field) {
        (Some((Value::String(value), _)), None) => Some(value.clone()),
        (Some((Value::Hash(fields), _)), Some(field)) => fields.get(field).cloned(),
        _ => None,
    }
}

pub fn sort(model: &mut Model, words: &[String]) -> String {
    let options = parse(words);
    let (mut found, is_set): (Vec<String>, bool) = match model.get(&words[1]) {
        None => (Vec::new(), false),
        Some((Value::List(elements), _)) => (elements.iter().cloned().collect(), false),
        Some((Value::Set(members), _)) => (members.iter().cloned().collect(), true),
        Some((Value::Sorted(members), _)) => {
            let mut all: Vec<_> = members.iter().map(|(m, s)| (*s, m.clone())).collect();
            all.sort();
            (all.into_iter().map(|(_, m)| m).collect(), false)
        }
        Some(_) => return WRONGTYPE.into(),
    };
    let keeps = options.by.is_some_and(|by| !by.contains('*'));
    if !keeps || is_set && options.store.is_some() {
        let by = options.by.filter(|_| !keeps).unwrap_or("#");
        found.sort_by_cached_key(|element| (look_up(model, by, element), element.clone()));
    }
    if options.descending {
        found.reverse();
    }
    if let Some((offset, count)) = options.limit {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        found = found.into_iter().skip(offset).take(count).collect();
    }
    let get = if options.get.is_empty() { vec!["#"] } else { options.get };
    let look_up = |element: &String| get.iter().map(|p| look_up(model, p, element)).collect();
    let values: Vec<Option<String>> = found.iter().flat_map::<Vec<_>, _>(look_up).collect();
    let Some(store) = options.store else {
        let shown = |value: &Option<String>| {
            value.as_ref().map_or("(nil)".into(), |value| format!("\"{value}\""))
        };
        return format!("[{}]", values.iter().map(shown).collect::<Vec<String>>().join(" "));
    };
    let len = values.len();
    let list: VecDeque<String> = values.into_iter().map(Option::unwrap_or_default).collect();
    // An empty one takes the key away.
    model.insert(store.into(), (Value::List(list), None));
    format!("(integer) {len}")
}
