//! Prints the tables of a new database, as the migrations leave them: the content of `migrations/new.sql`.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a tool for developers")]

use std::fs;
use std::path::Path;

use rusqlite::Connection;

fn main() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    let names = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    // Not `new.sql` itself.
    let mut names: Vec<String> = names.filter(|name| name.starts_with('0')).collect();
    names.sort();
    let database = Connection::open_in_memory().unwrap();
    for name in &names {
        database.execute_batch(&fs::read_to_string(folder.join(name)).unwrap()).unwrap();
    }
    println!(
        "-- The tables of a new database, as the migrations up to {} leave them.",
        &names[names.len() - 1][..4]
    );
    println!(
        "-- Made by: cargo run -p mainspring-store --example new_database > crates/store/migrations/new.sql"
    );
    // The tables that hold a search index are created with it.
    let mut tables = database
        .prepare(
            "SELECT sql FROM sqlite_schema AS s WHERE sql IS NOT NULL
               AND NOT EXISTS (SELECT 1 FROM sqlite_schema AS v
                 WHERE v.sql LIKE 'CREATE VIRTUAL TABLE%' AND s.name LIKE v.name || '\\_%' ESCAPE '\\')
             ORDER BY type = 'trigger', type = 'view', type = 'index', s.rowid",
        )
        .unwrap();
    let mut rows = tables.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        println!("\n{};", row.get::<_, String>(0).unwrap());
    }
    println!();
    let mut meta = database.prepare("SELECT name, value FROM meta ORDER BY name").unwrap();
    let mut rows = meta.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let (name, value): (String, i64) = (row.get(0).unwrap(), row.get(1).unwrap());
        println!("INSERT INTO meta VALUES ('{name}', {value});");
    }
    println!("INSERT INTO wal_token VALUES (1, x'4D53505257414C31', randomblob(16), zeroblob(16), 0);");
}
