//! The client has a method for every operation of the API, with the name of the operation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use mainspring_client::{
    AgentListQuery, ArtifactListQuery, ArtifactQuery, AuditListQuery, BindingListQuery, ChangesQuery,
    DeadLetterQuery, EventsQuery, GoalsQuery, GrantListQuery, HostCallQuery, IdQuery, KeyListQuery,
    MessageListQuery, OwnerEventsQuery, RunListQuery, SearchQuery, SessionListQuery, StateHistoryQuery,
    StateListQuery, StateQuery, TreeQuery, UsageQuery, WaitListQuery,
};
use mainspring_core::Limits;
use serde::de::value::Error;
use serde::de::{DeserializeOwned, Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;

#[test]
fn every_operation_has_a_method_of_its_name() {
    let document = mainspring_http::document(&Limits::default());
    let paths = document["paths"].as_object().unwrap().values();
    let operations: BTreeSet<&str> =
        paths.flat_map(|methods| methods.as_object().unwrap().values()).map(operation_id).collect();
    assert!(operations.len() >= 70, "the document holds {} operations", operations.len());
    let methods = public_methods();
    let missing: Vec<_> = operations.iter().filter(|operation| !methods.contains(**operation)).collect();
    assert!(missing.is_empty(), "no method of the client for {missing:?}");
}

fn operation_id(operation: &serde_json::Value) -> &str {
    operation["operationId"].as_str().unwrap()
}

/// The files of the client's nouns.
fn client_source() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/client");
    let files = std::fs::read_dir(folder).unwrap().map(|file| std::fs::read_to_string(file.unwrap().path()));
    files.map(Result::unwrap).collect()
}

/// The public methods in the files of the client's nouns.
fn public_methods() -> BTreeSet<String> {
    let text = client_source();
    let declared = text.lines().filter_map(|line| {
        let line = line.trim().strip_prefix("pub ")?;
        let name = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ")?;
        Some(name.split(['(', '<']).next()?.to_owned())
    });
    declared.collect()
}

#[test]
fn every_method_is_called_by_a_test() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let files = std::fs::read_dir(folder).unwrap().map(|file| std::fs::read_to_string(file.unwrap().path()));
    let text: String = files.map(Result::unwrap).collect();
    let untested: Vec<_> =
        public_methods().into_iter().filter(|method| !text.contains(&format!(".{method}("))).collect();
    assert!(untested.is_empty(), "no test calls {untested:?}");
}

/// The parameters that the server refuses: only the state of a session can be read as of a message.
const REFUSED_PARAMETERS: [(&str, &str); 2] = [("run_state_get", "at"), ("owner_state_get", "at")];

#[test]
fn every_query_parameter_is_a_field_that_the_client_sends() {
    let document = mainspring_http::document(&Limits::default());
    let paths = document["paths"].as_object().unwrap().values();
    let (source, types) = (client_source(), query_types());
    let mut parameters = 0;
    for operation in paths.flat_map(|methods| methods.as_object().unwrap().values()) {
        let listed = operation["parameters"].as_array().into_iter().flatten();
        let names = listed.filter(|parameter| parameter["in"] == "query").map(|parameter| &parameter["name"]);
        let names: Vec<&str> = names.map(|name| name.as_str().unwrap()).collect();
        parameters += names.len();
        let id = operation_id(operation);
        let methods = [format!(" fn {id}("), format!(" fn {id}_page(")];
        let methods = methods.iter().filter_map(|head| source.split_once(head)?.1.split("\n    }").next());
        let words = methods.flat_map(|method| method.split(|letter: char| !letter.is_alphanumeric()));
        let sent: Vec<&str> = words.filter_map(|word| types.get(word)).copied().flatten().copied().collect();
        let is_sent = |name: &str| sent.contains(&name) || REFUSED_PARAMETERS.contains(&(id, name));
        let missing: Vec<_> = names.iter().filter(|name| !is_sent(name)).collect();
        assert!(missing.is_empty(), "the client does not send {missing:?} of {id}");
    }
    assert!(parameters >= 40, "the document holds {parameters} parameters");
}

/// The fields of the types of queries.
fn query_types() -> BTreeMap<&'static str, &'static [&'static str]> {
    macro_rules! fields_of {
        ($($query:ident),* $(,)?) => { [$((stringify!($query), fields::<$query>())),*].into() };
    }
    fields_of![
        AgentListQuery,
        ArtifactListQuery,
        ArtifactQuery,
        AuditListQuery,
        BindingListQuery,
        ChangesQuery,
        DeadLetterQuery,
        EventsQuery,
        GoalsQuery,
        GrantListQuery,
        HostCallQuery,
        IdQuery,
        KeyListQuery,
        MessageListQuery,
        OwnerEventsQuery,
        RunListQuery,
        SearchQuery,
        SessionListQuery,
        StateHistoryQuery,
        StateListQuery,
        StateQuery,
        TreeQuery,
        UsageQuery,
        WaitListQuery,
    ]
}

/// The names of the fields of a type.
fn fields<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut names = FieldNames(&[]);
    let refused = T::deserialize(&mut names);
    assert!(refused.is_err(), "reading the field names ends with an error");
    names.0
}

/// Records the names of the fields of the struct that is read from it.
struct FieldNames(&'static [&'static str]);

impl<'de> Deserializer<'de> for &mut FieldNames {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("not a struct"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        self.0 = fields;
        Err(Error::custom("only the fields are wanted"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct
        seq tuple tuple_struct map enum identifier ignored_any
    }
}
