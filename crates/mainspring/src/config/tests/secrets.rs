//! Errors of the configuration repeat no secret.

use super::machine;

#[test]
fn an_error_about_an_address_does_not_repeat_its_password() {
    for (key, value) in [
        ("store", "postgress://ada:s3cret@db/main"),
        ("store", "postgres:/ada:s3cret@db/main"),
        ("cluster.listen_url", "ada:s3cret@db/main"),
        ("artifact_store.url", "s3://key:s3cret@agents"),
    ] {
        let variable = format!("MAINSPRING_{}", key.replace('.', "_").to_uppercase());
        for machine in [
            machine().file(&format!("{key} = {value:?}\n")),
            machine().file(&format!("{key} = [{value:?}, \"a\"]\n")),
            machine().env(&variable, value),
            machine().flag(key, value),
        ] {
            let problems = machine.problems();
            assert!(problems.starts_with(&format!("{key} = … (")), "{problems}");
            assert!(!problems.contains("s3cret"), "{problems}");
        }
    }
}

#[test]
fn an_error_about_the_environment_of_an_agent_does_not_repeat_it() {
    let text = "[adapters.x]\nkind = \"acp\"\ncommand = [\"a\"]\nenv = { A = \"s3cret\", B = 1 }\n";
    let problems = machine().file(text).problems();
    assert!(problems.contains("adapters.x.env = … ("), "{problems}");
    assert!(!problems.contains("s3cret"), "{problems}");
}
