//! Asks a bucket about itself before a store is put into it: how it is reached, the time of its
//! server, and the rules by which the server itself deletes or moves objects.

use std::time::Duration;

use http::header::DATE;
use http::{HeaderMap, Method, StatusCode};
use objects::{ObjectsError, Result};
use serde::Deserialize;

use crate::answer;
use crate::errors::Asked;
use crate::request::Ask;
use crate::s3::S3Objects;

/// The most bytes of a bucket's configuration: a thousand rules with names and prefixes.
const CONFIGURATION: u64 = 4 << 20;
/// The most bytes of a rule's name.
const LONGEST_NAME: usize = 255;

/// The connection parameters of a bucket, without any secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reached {
    /// The scheme, host and port of the server.
    pub server: String,
    /// The region that requests are signed for.
    pub region: String,
    /// The source of the credentials.
    pub credentials: String,
}

/// The answer of a server about one of its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said<T> {
    /// The setting.
    Known(T),
    /// These credentials may not ask for it.
    NotAllowed,
    /// The server does not have the setting, or its answer cannot be read.
    NotKnown,
}

/// A rule of a bucket that applies to objects of a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its name in the bucket, or its prefix if it has no name.
    pub name: String,
    /// Its effect.
    pub effect: Effect,
}

/// The effect of a rule on objects of a certain age.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The objects are deleted.
    Deletes,
    /// The objects are moved to a storage class, from which some servers do not read at once.
    Moves(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct VersioningConfiguration {
    #[serde(default)]
    status: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct LifecycleConfiguration {
    #[serde(default)]
    rule: Vec<RawRule>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawRule {
    #[serde(default, rename = "ID")]
    id: Option<String>,
    status: String,
    /// The prefix of rules in the old form, before filters existed.
    #[serde(default)]
    prefix: Option<String>,
    #[serde(default)]
    filter: Option<Filter>,
    #[serde(default)]
    expiration: Vec<Expiration>,
    #[serde(default)]
    transition: Vec<Transition>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Filter {
    #[serde(default)]
    prefix: Option<String>,
    #[serde(default)]
    tag: Option<Tag>,
    #[serde(default)]
    and: Option<And>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct And {
    #[serde(default)]
    prefix: Option<String>,
    #[serde(default)]
    tag: Vec<Tag>,
}

/// A tag, whose content is ignored: objects of stores have no tags.
#[derive(Deserialize)]
struct Tag {}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Expiration {
    #[serde(default)]
    days: Option<String>,
    #[serde(default)]
    date: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Transition {
    #[serde(default)]
    storage_class: Option<String>,
}

impl RawRule {
    /// Returns the prefix of the objects that the rule applies to, or `None` if it applies only to
    /// objects with tags.
    fn prefix(&self) -> Option<&str> {
        let own = self.prefix.as_deref();
        let Some(filter) = &self.filter else { return Some(own.unwrap_or_default()) };
        let and = filter.and.as_ref();
        let tags = filter.tag.is_some() || and.is_some_and(|and| !and.tag.is_empty());
        let within = and.and_then(|and| and.prefix.as_deref());
        (!tags).then(|| filter.prefix.as_deref().or(within).or(own).unwrap_or_default())
    }

    /// Returns the effects of the rule on objects below `place`.
    fn effects(&self, place: &str) -> Vec<Rule> {
        let Some(prefix) = self.prefix() else { return Vec::new() };
        // The rule may apply to only a part of the objects, too.
        let applies = place.starts_with(prefix) || prefix.starts_with(place);
        if self.status.trim() != "Enabled" || !applies {
            return Vec::new();
        }
        let named = self.id.as_deref().filter(|id| !id.is_empty());
        let name = named.map_or_else(|| format!("for {prefix:?}"), String::from);
        let name: String = name.chars().take(LONGEST_NAME).collect();
        let deletes = self.expiration.iter().any(|e| e.days.is_some() || e.date.is_some());
        let class = |transition: &Transition| {
            let class = transition.storage_class.clone().unwrap_or_default();
            Effect::Moves(class.chars().take(LONGEST_NAME).collect())
        };
        let effects = deletes.then_some(Effect::Deletes).into_iter();
        let effects = effects.chain(self.transition.iter().map(class));
        effects.map(|effect| Rule { name: name.clone(), effect }).collect()
    }
}

/// Parses the rules of a bucket, and returns those that affect objects below `place`, or `None` if
/// the text is not a list of rules.
fn rules(body: &[u8], place: &str) -> Option<Vec<Rule>> {
    // The library does not check the name of the outermost element.
    if !answer::is_document(body, "LifecycleConfiguration") {
        return None;
    }
    let read: LifecycleConfiguration = quick_xml::de::from_reader(body).ok()?;
    Some(read.rule.iter().flat_map(|rule| rule.effects(place)).collect())
}

fn is_versioned(body: &[u8]) -> Option<bool> {
    if !answer::is_document(body, "VersioningConfiguration") {
        return None;
    }
    let read: VersioningConfiguration = quick_xml::de::from_reader(body).ok()?;
    Some(read.status.is_some_and(|status| status.trim() == "Enabled"))
}

/// Returns the time of a server, since 1970, from the header of an answer.
fn date(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(DATE)?.to_str().ok()?;
    let seconds = chrono::DateTime::parse_from_rfc2822(text.trim()).ok()?.timestamp();
    u64::try_from(seconds).ok().map(Duration::from_secs)
}

impl S3Objects {
    /// Returns the connection parameters of the bucket. Nothing is sent.
    pub fn reached(&self) -> Reached {
        let place = self.bucket();
        let url = reqwest::Url::parse(&place.url).ok();
        Reached {
            server: url.map_or_else(String::new, |url| url.origin().ascii_serialization()),
            region: place.region.clone(),
            credentials: self.source().trim_end_matches(',').into(),
        }
    }

    /// Returns the server's time, since 1970, in whole seconds, at some moment between the sending
    /// of a request and its answer, or `None` if the server does not tell it. An error is that of a
    /// list: the bucket does not exist, or these credentials may not use it.
    pub fn server_time(&self) -> Result<Option<Duration>> {
        let asked = Asked::List(String::new());
        // The credentials may be valid only for this prefix.
        let prefix = self.bucket().prefix.as_str();
        let query = [("list-type", "2"), ("max-keys", "1"), ("prefix", prefix)];
        let url = reqwest::Url::parse_with_params(&self.bucket().url, query)
            .map_err(|_| asked.unsure("the name of the place makes no URL"))?;
        let answer = self.send(&asked, Ask::new(Method::GET, url.into(), CONFIGURATION))?;
        match answer.status {
            StatusCode::OK => Ok(date(&answer.headers)),
            _ => Err(asked.refused(&answer, &self.bucket().name)),
        }
    }

    /// Returns whether the bucket keeps versions that were deleted or replaced.
    pub fn versioning(&self) -> Result<Said<bool>> {
        self.configuration("versioning", is_versioned, None)
    }

    /// Returns the rules of the bucket that delete or move old objects of this place, or some of
    /// them. Rules for objects with tags are not among them, since objects of stores have none; nor
    /// are rules for versions that were replaced, or for uploads that were abandoned.
    pub fn lifecycle(&self) -> Result<Said<Vec<Rule>>> {
        let place = self.bucket().prefix.clone();
        let none = ("NoSuchLifecycleConfiguration", Vec::new());
        self.configuration("lifecycle", |body| rules(body, &place), Some(none))
    }

    /// Returns a part of the bucket's configuration. `none` is the error code for a missing
    /// configuration, and the value that it stands for.
    fn configuration<T>(
        &self,
        what: &str,
        read: impl Fn(&[u8]) -> Option<T>,
        none: Option<(&str, T)>,
    ) -> Result<Said<T>> {
        let asked = Asked::Configuration(what.into());
        // Some servers require the slash after the bucket's name in requests for a setting.
        let url = format!("{}/?{what}", self.bucket().url);
        let answer = self.send(&asked, Ask::new(Method::GET, url, CONFIGURATION))?;
        let body = answer.body.as_deref().unwrap_or_default();
        let code = answer::code(body);
        if let Some((_, value)) = none.filter(|(none, _)| code == Some(none)) {
            return Ok(Said::Known(value));
        }
        match answer.status.as_u16() {
            200 => Ok(read(body).map_or(Said::NotKnown, Said::Known)),
            // An error for this name means the same as a missing setting.
            400 | 404 | 405 | 501 => Ok(Said::NotKnown),
            _ => match asked.refused(&answer, &self.bucket().name) {
                ObjectsError::Denied { .. } => Ok(Said::NotAllowed),
                error => Err(error),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn rule(inside: &str) -> String {
        format!("<Rule><ID>r</ID><Status>Enabled</Status>{inside}</Rule>")
    }

    fn found(rules_text: &str, place: &str) -> Vec<Effect> {
        let text = format!(
            "<?xml version=\"1.0\"?>\n<LifecycleConfiguration xmlns=\"x\">{rules_text}\
             </LifecycleConfiguration>"
        );
        let rules = rules(text.as_bytes(), place).expect("rules");
        rules.into_iter().map(|rule| rule.effect).collect()
    }

    #[test]
    fn rules_are_told_that_delete_or_move_what_lies_below_the_prefix() {
        let days = "<Expiration><Days>30</Days></Expiration>";
        let prefix = |prefix: &str| format!("<Filter><Prefix>{prefix}</Prefix></Filter>{days}");
        for applies in [
            rule(&prefix("")),
            rule(&prefix("stores/")),
            rule(&prefix("stores/a/z/")),
            rule(days),
            rule(&format!("<Prefix>stores</Prefix>{days}")),
            rule(&format!("<Filter/>{days}")),
            rule(&format!("<Filter><And><Prefix>s</Prefix></And></Filter>{days}")),
            rule("<Expiration><Date>2030-01-01T00:00:00Z</Date></Expiration>"),
            format!("{}{}", rule(&prefix("logs/")), rule(&prefix("st"))),
        ] {
            assert_eq!(found(&applies, "stores/a/"), [Effect::Deletes], "{applies}");
        }
        let tag = "<Tag><Key>k</Key><Value>v</Value></Tag>";
        for other in [
            rule(&prefix("logs/")),
            rule(&prefix("stores/b")),
            rule(&prefix("")).replace("Enabled", "Disabled"),
            rule(&format!("<Filter>{tag}</Filter>{days}")),
            rule(&format!("<Filter><And><Prefix>s</Prefix>{tag}{tag}</And></Filter>{days}")),
            rule(
                "<Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>",
            ),
            rule(
                "<NoncurrentVersionExpiration><NoncurrentDays>3</NoncurrentDays></NoncurrentVersionExpiration>",
            ),
            String::new(),
        ] {
            assert_eq!(found(&other, "stores/a/"), [], "{other}");
        }
        let moves = "<Transition><Days>9</Days><StorageClass>GLACIER</StorageClass></Transition>";
        let both = [Effect::Deletes, Effect::Moves("GLACIER".into())];
        assert_eq!(found(&rule(&format!("{moves}{days}")), ""), both);
    }

    #[test]
    fn what_is_no_list_of_rules_is_not_taken_for_one() {
        for other in ["", "<html></html>", "<ListBucketResult/>", "{}", "<LifecycleConfiguration>"]
        {
            assert_eq!(rules(other.as_bytes(), ""), None, "{other}");
            assert_eq!(is_versioned(other.as_bytes()), None, "{other}");
        }
        let said = |status: &str| {
            is_versioned(
                format!("<VersioningConfiguration>{status}</VersioningConfiguration>").as_bytes(),
            )
        };
        assert_eq!(said("<Status>Enabled</Status>"), Some(true));
        assert_eq!((said("<Status>Suspended</Status>"), said("")), (Some(false), Some(false)));
    }

    #[test]
    fn the_date_of_an_answer_is_read() {
        let with = |text: &'static str| {
            date(&HeaderMap::from_iter([(DATE, HeaderValue::from_static(text))]))
        };
        let second = Some(Duration::from_secs(784_111_777));
        assert_eq!(with("Sun, 06 Nov 1994 08:49:37 GMT"), second);
        assert_eq!((with("yesterday"), date(&HeaderMap::new())), (None, None));
    }
}
