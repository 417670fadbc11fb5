//! Rules of the settings that name an object store.

use super::{Input, Rule, Value};

/// A rule that accepts a bucket with a prefix of object names, or an empty text for none.
pub(in super::super) struct BucketUrl;

/// Allows the URL of a bucket or nothing.
pub(in super::super) const fn bucket_url() -> BucketUrl {
    BucketUrl
}

impl Rule<Option<String>> for BucketUrl {
    fn read(&self, input: &Input<'_>) -> Result<Option<String>, String> {
        match input.text().ok_or_else(|| self.allowed())? {
            "" => Ok(None),
            text => match split_bucket(text) {
                Some(_) => Ok(Some(text.to_owned())),
                None => Err(self.allowed()),
            },
        }
    }

    fn show(&self, value: &Option<String>) -> Value {
        Value::Text(value.clone().unwrap_or_default())
    }

    fn allowed(&self) -> String {
        "a bucket such as s3://bucket/prefix, or empty for the state directory".to_owned()
    }
}

/// Splits a URL into the bucket and the prefix of object names. `None` if it is not the URL of a bucket.
pub(crate) fn split_bucket(url: &str) -> Option<(&str, &str)> {
    let rest = url.strip_prefix("s3://")?;
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let prefix = prefix.trim_end_matches('/');
    let is_bucket = (3..=63).contains(&bucket.len())
        && bucket
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte));
    let is_segment = |segment: &str| {
        !segment.is_empty()
            && segment.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_=".contains(&byte))
            && !matches!(segment, "." | "..")
    };
    let is_prefix = prefix.len() <= 512 && (prefix.is_empty() || prefix.split('/').all(is_segment));
    (is_bucket && is_prefix).then_some((bucket, prefix))
}

/// A rule that accepts the name of a region, or an empty text for none.
pub(in super::super) struct Region;

/// Allows the name of a region or nothing.
pub(in super::super) const fn region() -> Region {
    Region
}

impl Rule<Option<String>> for Region {
    fn read(&self, input: &Input<'_>) -> Result<Option<String>, String> {
        let is_name = |text: &str| {
            text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        match input.text().ok_or_else(|| self.allowed())? {
            "" => Ok(None),
            text if is_name(text) => Ok(Some(text.to_owned())),
            _ => Err(self.allowed()),
        }
    }

    fn show(&self, value: &Option<String>) -> Value {
        Value::Text(value.clone().unwrap_or_default())
    }

    fn allowed(&self) -> String {
        "the name of a region such as eu-central-1, or empty for that of the environment".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_may_have_a_prefix() {
        for (url, split) in [
            ("s3://agents", Some(("agents", ""))),
            ("s3://agents/", Some(("agents", ""))),
            ("s3://my.agents-1/a/b_c/", Some(("my.agents-1", "a/b_c"))),
            ("s3://", None),
            ("s3://Agents", None),
            ("s3://agents/a//b", None),
            ("s3://agents/../b", None),
            ("s3://agents/a b", None),
            ("s3://key:secret@agents", None),
            ("https://agents", None),
        ] {
            assert_eq!(split_bucket(url), split, "{url}");
        }
    }
}
