//! The check of a PostgreSQL database for `doctor`.

use mainspring_store::{FeedHolder, PostgresCheck, PostgresOptions, PostgresStore};

use crate::cluster::{database, psql_open};

#[tokio::test(flavor = "multi_thread")]
async fn a_check_names_the_transaction_that_holds_back_readers_of_all_sessions() {
    let (url, elsewhere) = (database(), database());
    let empty = PostgresCheck::read(&url).await.unwrap();
    assert_eq!((empty.schema, empty.servers.len(), empty.is_read_only), (None, 0, false));
    drop(PostgresStore::open(&url, PostgresOptions::default()).unwrap());
    let check = PostgresCheck::read(&url).await.unwrap();
    assert_eq!((check.schema, check.sees_own_only), (Some(check.known_schema), false));
    assert!(check.settings.contains(&("fsync".into(), "off".into())), "{:?}", check.settings);
    assert!(!check.commit.is_zero() && !check.round_trip.is_zero());
    // In another database of the same server, which shares the transaction ids.
    let mut other = psql_open(&elsewhere);
    other.run("CREATE TABLE other (n int); BEGIN; INSERT INTO other VALUES (1);");
    let check = PostgresCheck::read(&url).await.unwrap();
    // Other tests use the same server.
    let is_other = |holder: &&FeedHolder| elsewhere.contains(&format!("@/{}?", holder.database));
    let held = check.holders.iter().find(is_other);
    let held = held.unwrap_or_else(|| panic!("{:?}", check.holders));
    assert!(held.pid > 0 && held.application == "psql", "{held:?}");
    other.run("COMMIT;");
    let check = PostgresCheck::read(&url).await.unwrap();
    assert!(check.holders.iter().find(is_other).is_none(), "{:?}", check.holders);
}
