use super::*;

fn operations() -> Vec<(String, Value)> {
    let document = document(&Limits::default());
    let paths = document["paths"].as_object().unwrap().clone();
    let of = |(path, methods): (String, Value)| {
        let methods = methods.as_object().unwrap().clone();
        methods.into_iter().map(move |(method, operation)| (format!("{method} {path}"), operation))
    };
    paths.into_iter().flat_map(of).collect()
}

#[test]
fn handlers_name_problems_that_exist() {
    for (endpoints, _) in endpoints() {
        let api = serde_json::to_value(endpoint::describe(endpoints)).unwrap();
        for (path, methods) in api["paths"].as_object().unwrap() {
            for operation in methods.as_object().unwrap().values() {
                for code in operation["x-problems"].as_array().into_iter().flatten() {
                    let known = PROBLEMS.iter().any(|(_, known)| code == known);
                    assert!(known, "{path} names {code}, which has no row in PROBLEMS");
                }
            }
        }
    }
}

#[test]
fn metrics_use_the_operation_ids_of_the_document() {
    let mut known = endpoint::Operations::default();
    endpoints().iter().for_each(|(endpoints, _)| known.extend(endpoints));
    for (name, operation) in operations() {
        let (method, path) = name.split_once(' ').unwrap();
        let method = method.to_uppercase().parse().unwrap();
        let id = known.id(&method, path).map(|id| &**id);
        assert_eq!(id, operation["operationId"].as_str(), "{name}");
    }
}

#[test]
fn every_operation_is_documented_completely() {
    let all = operations();
    let ids: BTreeSet<&str> =
        all.iter().map(|(_, operation)| operation["operationId"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), all.len(), "operation ids are unique");
    for (name, operation) in &all {
        assert!(operation["summary"].as_str().is_some_and(|text| !text.is_empty()), "{name} has no summary");
        assert!(operation.get("x-problems").is_none(), "{name}");
        let responses = operation["responses"].as_object().unwrap();
        assert!(responses.keys().any(|status| status.starts_with('2')), "{name} never succeeds");
        for (status, response) in responses.iter().filter(|(status, _)| status.as_str() >= "400") {
            assert!(response["x-codes"].as_array().is_some_and(|codes| !codes.is_empty()), "{name} {status}");
        }
        let is_open = operation["security"] == json!([{}]);
        assert_eq!(responses.contains_key("401"), !is_open, "{name}");
    }
}

#[test]
fn every_reference_resolves() {
    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
                fields.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            _ => {}
        }
    }
    let (document, mut found) = (document(&Limits::default()), BTreeSet::new());
    references(&document, &mut found);
    assert!(found.len() > 20);
    for reference in found {
        assert!(document.pointer(&reference[1..]).is_some(), "{reference}");
    }
}

#[test]
fn the_page_limit_is_that_of_the_server() {
    let document = document(&Limits { page: 7, ..Limits::default() });
    let parameters = document["paths"]["/v1/runs"]["get"]["parameters"].as_array().unwrap();
    let limit = parameters.iter().find(|parameter| parameter["name"] == "limit").unwrap();
    assert_eq!(limit["schema"]["maximum"], 7);
}

/// Public fields are camelCase. A snake_case name comes from serde's `rename_all_fields` on an enum, which utoipa does
/// not support: use `rename_all` on each variant.
#[test]
fn every_field_is_camel_case() {
    fn names(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                let properties = fields.get("properties").and_then(Value::as_object);
                found.extend(properties.into_iter().flat_map(Map::keys).cloned());
                fields.values().for_each(|value| names(value, found));
            }
            Value::Array(items) => items.iter().for_each(|item| names(item, found)),
            _ => {}
        }
    }
    let mut found = BTreeSet::new();
    names(&document(&Limits::default()), &mut found);
    assert!(found.contains("messageId"));
    assert_eq!(found.iter().filter(|name| name.contains('_')).collect::<Vec<_>>(), [""; 0]);
}
