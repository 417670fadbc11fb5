use std::path::PathBuf;

use mainspring_api::AuditListQuery;
use mainspring_core::{AccessRole, KeyId, Time};

use super::*;

const NOW: Time = Time(1_800_000_000_000);

struct Log {
    dir: tempfile::TempDir,
    options: AuditOptions,
    clock: Clock,
}

impl Log {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = AuditOptions::new(dir.path().join("audit"));
        Self { dir, options, clock: Clock::manual(NOW) }
    }

    fn open(&self) -> Arc<Audit> {
        Arc::new(Audit::open(self.options.clone(), self.clock.clone()).unwrap())
    }

    fn files(&self) -> Vec<PathBuf> {
        files::list(&self.options.folder).unwrap().into_iter().map(|file| file.path).collect()
    }

    fn findings(&self) -> Vec<String> {
        verify(&self.options.folder).unwrap().findings
    }

    fn text(&self) -> String {
        self.files().iter().map(|path| std::fs::read_to_string(path).unwrap()).collect()
    }
}

fn change(owner: &str) -> AuditRecord {
    AuditRecord::new(AuditKind::Change, "run_create", AuditActor::Person { owner_id: owner.into() })
}

fn refusal(by: AuditActor, address: &str) -> AuditRecord {
    let from = Some(AuditOrigin::Tcp { address: address.parse().unwrap() });
    AuditRecord { from, status: Some(401), ..AuditRecord::new(AuditKind::Refusal, "run_list", by) }
}

fn all(log: &Log) -> Vec<AuditRecord> {
    let query = AuditListQuery::default();
    read::page(&log.options.folder, &AuditScope::All, &query, 10_000).unwrap().records
}

#[test]
fn a_record_is_in_the_file_when_append_returns_and_the_chain_continues_after_a_kill() {
    let log = Log::new();
    let audit = log.open();
    audit.append(change("ana"));
    // As after `kill -9`: nothing was closed or synced since.
    assert_eq!(all(&log).len(), 2);
    std::mem::forget(audit);
    log.open().append(change("bob"));
    let seqs: Vec<u64> = all(&log).iter().map(|record| record.seq).collect();
    assert_eq!(seqs, [1, 2, 3, 4]);
    assert_eq!(log.findings(), [""; 0]);
}

#[test]
fn a_changed_a_removed_and_an_inserted_record_are_found() {
    let log = Log::new();
    let audit = log.open();
    for owner in ["ana", "bob", "cyd", "dan"] {
        audit.append(change(owner));
    }
    audit.sync();
    let (path, text) = (&log.files()[0], log.text());
    let lines: Vec<&str> = text.lines().collect();
    let attack = |lines: &[&str]| {
        std::fs::write(path, lines.join("\n") + "\n").unwrap();
        let findings = log.findings();
        std::fs::write(path, &text).unwrap();
        findings
    };
    let changed = lines[2].replace("bob", "eve");
    assert_eq!(
        attack(&[lines[0], lines[1], &changed, lines[3], lines[4]]),
        ["the record 3 was changed, or the record before it was replaced"]
    );
    assert_eq!(attack(&[lines[0], lines[1], lines[3], lines[4]]), ["the records 3 to 3 are missing"]);
    assert_eq!(attack(&lines[..3]), ["the records 4 to 5 at the end are missing"]);
    assert_eq!(attack(&lines[2..]), ["the records before 3 are missing, and no record says so"],);
    assert!(!attack(&[lines[0], lines[1], lines[1], lines[2], lines[3], lines[4]]).is_empty());
    assert_eq!(log.findings(), [""; 0]);
    std::fs::remove_file(log.options.folder.join("head.json")).unwrap();
    assert_eq!(log.findings(), ["head.json is missing or damaged"]);
}

#[test]
fn records_that_were_removed_at_the_end_stay_missing_after_the_next_start() {
    let log = Log::new();
    let audit = log.open();
    audit.append(change("ana"));
    audit.append(change("bob"));
    audit.sync();
    drop(audit);
    let first = log.text().lines().next().unwrap().to_owned();
    std::fs::write(&log.files()[0], first + "\n").unwrap();
    let audit = log.open();
    audit.append(change("cyd"));
    audit.sync();
    let records = all(&log);
    assert_eq!((records[1].seq, records[1].code.as_deref()), (4, Some("records_missing")));
    assert_eq!(log.findings(), ["the records 2 to 3 are missing"]);
}

#[test]
fn an_incomplete_record_is_removed_and_reported() {
    let log = Log::new();
    log.open().append(change("ana"));
    let path = log.files().remove(0);
    let text = log.text();
    std::fs::write(&path, &text[..text.len() - 20]).unwrap();
    log.open();
    let last = all(&log).pop().unwrap();
    assert_eq!((last.seq, last.code.as_deref()), (2, Some("incomplete_record_removed")));
    assert_eq!(log.findings(), [""; 0]);
}

#[test]
fn a_log_that_ends_with_garbage_is_not_continued() {
    let log = Log::new();
    log.open();
    std::fs::write(&log.files()[0], "garbage\n").unwrap();
    let error = Audit::open(log.options.clone(), log.clock).unwrap_err();
    assert!(matches!(error, AuditError::Damaged { .. }), "{error}");
}

#[test]
fn files_are_rotated_by_size_and_each_removal_is_recorded() {
    let mut log = Log::new();
    log.options.file_bytes = 2_000;
    log.options.keep_bytes = 6_000;
    let audit = log.open();
    for _ in 0..100 {
        audit.append(change("ana"));
        audit.sync();
    }
    let size: u64 = log.files().iter().map(|file| file.metadata().unwrap().len()).sum();
    assert!(size <= 6_000 + 2_500, "{size}");
    assert!(log.files().len() > 1);
    let records = all(&log);
    assert!(records[0].seq > 1);
    assert!(records.iter().any(|record| record.operation == "audit_prune"));
    assert_eq!(log.findings(), [""; 0]);
    // This removal is not recorded in the log.
    std::fs::remove_file(&log.files()[0]).unwrap();
    assert_eq!(log.findings().len(), 1);
    drop(audit);
    log.open();
}

#[test]
fn files_are_removed_by_age() {
    let mut log = Log::new();
    log.options.file_bytes = 1_000;
    log.options.keep_days = 1;
    let audit = log.open();
    for _ in 0..10 {
        audit.append(change("ana"));
    }
    audit.sync();
    let before = log.files().len();
    log.clock.advance(2 * 24 * 60 * 60 * 1_000);
    audit.sync();
    assert!(before > 2 && log.files().len() < before, "{before}");
    assert_eq!(log.findings(), [""; 0]);
}

#[test]
fn a_full_disk_fails_the_log_and_loses_no_record() {
    let log = Log::new();
    let audit = log.open();
    audit.sync();
    // Writes to this file fail, as on a full disk.
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let file = audit.writer.lock().replace_file(full);
    audit.append(change("ana"));
    let failure = audit.check_change().unwrap_err();
    assert_eq!(failure.code(), "store_full");
    audit.append(change("bob"));
    audit.sync();
    assert!(audit.check_writable().is_err());
    assert_eq!(all(&log).len(), 1);
    audit.writer.lock().replace_file(file);
    audit.sync();
    audit.check_writable().unwrap();
    assert_eq!(all(&log).len(), 3);
    assert_eq!(log.findings(), [""; 0]);
}

#[test]
fn records_that_do_not_fit_into_memory_are_counted() {
    let log = Log::new();
    let audit = log.open();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let file = audit.writer.lock().replace_file(full);
    let long = AuditRecord { about: vec!["x".repeat(100_000)], ..change("ana") };
    for _ in 0..15 {
        audit.append(long.clone());
    }
    audit.writer.lock().replace_file(file);
    audit.sync();
    let lost = all(&log).pop().unwrap();
    assert_eq!((lost.operation.as_str(), lost.count), ("audit_lost", Some(4)));
    assert_eq!(log.findings(), [""; 0]);
}

#[test]
fn strangers_write_a_bounded_number_of_records_and_the_rest_is_counted() {
    let log = Log::new();
    let audit = log.open();
    for port in 0..500 {
        audit.append_refusal(refusal(AuditActor::Anonymous {}, &format!("192.0.2.1:{}", 1_000 + port)));
    }
    assert_eq!(all(&log).len(), 1 + 10);
    // Other addresses still get a record each, until all of them together are too many.
    for host in 0..200 {
        audit.append_refusal(refusal(AuditActor::Anonymous {}, &format!("198.51.100.{host}:80")));
    }
    let records = all(&log);
    assert_eq!(records.len(), 1 + 60);
    assert_eq!(records[11].count, Some(490));
    audit.append_suppressed();
    assert_eq!(all(&log).pop().unwrap().count, Some(150));
    log.clock.advance(60_000);
    audit.append_refusal(refusal(AuditActor::Anonymous {}, "203.0.113.9:80"));
    assert_eq!(all(&log).len(), 1 + 60 + 2);
}

#[test]
fn the_addresses_of_one_ipv6_network_are_one_place() {
    let log = Log::new();
    let audit = log.open();
    for host in 1..100 {
        audit.append_refusal(refusal(AuditActor::Anonymous {}, &format!("[2001:db8::{host:x}]:80")));
    }
    assert_eq!(all(&log).len(), 1 + 10);
}

#[test]
fn a_sign_in_is_recorded_once_in_its_interval_for_each_place() {
    let log = Log::new();
    let audit = log.open();
    let caller = Caller { key: Some(KeyId::from_random([1; 16])), ..Caller::new("ana") };
    let from = |address: &str| Some(AuditOrigin::Tcp { address: address.parse().unwrap() });
    audit.sign_in(&caller, from("192.0.2.1:1000"));
    audit.sign_in(&caller, from("192.0.2.1:2000"));
    audit.sign_in(&caller, from("192.0.2.2:1000"));
    assert_eq!(all(&log).len(), 3);
    log.clock.advance(15 * 60 * 1_000);
    audit.sign_in(&caller, from("192.0.2.1:1000"));
    assert_eq!(all(&log).len(), 4);
}

#[test]
fn a_caller_reads_only_the_records_of_its_scope() {
    let log = Log::new();
    let audit = log.open();
    audit.append(change("ana"));
    audit.append(AuditRecord { org_id: Some("acme".into()), ..change("bob") });
    audit.append(AuditRecord { owner_id: Some("ana".into()), ..change("root") });
    let read = |caller: &Caller| {
        let scope = AuditScope::of(caller).unwrap();
        let page = read::page(&log.options.folder, &scope, &AuditListQuery::default(), 10).unwrap();
        page.records.iter().map(|record| record.seq).collect::<Vec<_>>()
    };
    let admin = |caller: Caller| caller.with_role(AccessRole::Admin);
    assert_eq!(read(&Caller::new("ana")), [2, 4]);
    assert_eq!(read(&Caller::new("bob").with_role(AccessRole::Viewer)), [3]);
    assert_eq!(read(&Caller::new("eve")), [0_u64; 0]);
    assert_eq!(read(&admin(Caller::new("eve").in_org("acme"))), [3]);
    assert_eq!(read(&admin(Caller::new("eve"))), [1, 2, 3, 4]);
}

#[test]
fn pages_continue_after_the_last_record_and_filters_select_records() {
    let mut log = Log::new();
    log.options.file_bytes = 1_000;
    let audit = log.open();
    for owner in ["ana", "bob"].into_iter().cycle().take(20) {
        audit.append(AuditRecord { about: vec![format!("of {owner}")], ..change(owner) });
    }
    let page = |query: &AuditListQuery, limit| {
        read::page(&log.options.folder, &AuditScope::All, query, limit).unwrap()
    };
    let (mut seqs, mut query) = (vec![], AuditListQuery::default());
    loop {
        let page = page(&query, 3);
        seqs.extend(page.records.iter().map(|record| record.seq));
        match page.next {
            Some(next) => query.after = Some(next),
            None => break,
        }
    }
    assert_eq!(seqs, (1..=21).collect::<Vec<_>>());
    let count = |query: AuditListQuery| page(&query, 100).records.len();
    assert_eq!(count(AuditListQuery { owner: Some("ana".into()), ..AuditListQuery::default() }), 10);
    assert_eq!(count(AuditListQuery { about: Some("of bob".into()), ..AuditListQuery::default() }), 10);
    assert_eq!(count(AuditListQuery { kind: Some(AuditKind::System), ..AuditListQuery::default() }), 1);
    assert_eq!(count(AuditListQuery { since_ms: Some(NOW.plus(1)), ..AuditListQuery::default() }), 0);
    assert_eq!(count(AuditListQuery { since_ms: Some(NOW), ..AuditListQuery::default() }), 21);
}

#[test]
fn files_are_private_and_names_that_may_be_secrets_are_left_out() {
    use std::os::unix::fs::PermissionsExt;
    let log = Log::new();
    log.open().sync();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&log.options.folder), 0o700);
    assert_eq!(mode(&log.files()[0]), 0o600);
    assert_eq!(mode(&log.options.folder.join("head.json")), 0o600);
    assert_eq!(audit_name("msk_0123"), None);
    assert_eq!(audit_name(&"é".repeat(200)).unwrap().len(), 200);
    drop(log.dir);
}
