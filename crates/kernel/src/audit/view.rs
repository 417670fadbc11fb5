//! The numbers of records for callers who read only a part of the log.
//!
//! Records of all owners are numbered together: two numbers would reveal to an owner how much the others did
//! in between. So a caller who does not read the whole log gets each number encrypted, by a permutation of
//! the numbers that is different for each scope. The permutation keeps neither distances nor order, and stays
//! the same as long as the key file does.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::read::AuditScope;
use crate::ids::Ids;

/// The file of the key, beside those of the records.
const KEY_FILE: &str = "view.key";
/// Numbers have this many bits, so that they are exact in every JSON reader.
const BITS: u32 = 53;
const HALF_BITS: u32 = 27;
const HALF_MASK: u64 = (1 << HALF_BITS) - 1;
const ROUNDS: u8 = 6;

/// The key of the permutations.
#[derive(Debug, Clone)]
pub(super) struct ViewKey([u8; 32]);

impl ViewKey {
    /// Reads the key of the log in `folder`, and makes one if there is none.
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        let path = folder.join(KEY_FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) if !text.trim().is_empty() => text,
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            // A crash can leave an empty file.
            _ => {
                let secret = Ids::system().secret();
                let mut options = OpenOptions::new();
                let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&path)?;
                file.write_all(secret.as_bytes())?;
                secret
            }
        };
        Ok(Self(*blake3::hash(text.trim().as_bytes()).as_bytes()))
    }

    /// Returns the permutation of a scope; `None` for callers who read the whole log.
    pub(super) fn of(&self, scope: &AuditScope) -> Option<View> {
        let name = match scope {
            AuditScope::All => return None,
            AuditScope::Org(org) => format!("org {org}"),
            AuditScope::Owner(owner) => format!("owner {owner}"),
        };
        Some(View(*blake3::keyed_hash(&self.0, name.as_bytes()).as_bytes()))
    }
}

/// The permutation of one scope, as its key.
#[derive(Debug, Clone)]
pub(super) struct View([u8; 32]);

impl View {
    /// Encrypts the number of a record.
    pub(super) fn hide(&self, seq: u64) -> u64 {
        self.walk(seq, Self::forward)
    }

    /// Decrypts a number that [`Self::hide`] has made. 0, the position before every record, is not encrypted.
    pub(super) fn reveal(&self, shown: u64) -> u64 {
        if shown == 0 { 0 } else { self.walk(shown, Self::back) }
    }

    /// Repeats the permutation of 54 bits until the result fits into 53 bits. Returns a number of more than
    /// 53 bits, which is no record's number, unchanged.
    fn walk(&self, number: u64, step: impl Fn(&Self, u64) -> u64) -> u64 {
        if number >> BITS != 0 {
            return number;
        }
        let mut walked = step(self, number);
        while walked >> BITS != 0 {
            walked = step(self, walked);
        }
        walked
    }

    fn forward(&self, number: u64) -> u64 {
        let (mut left, mut right) = (number >> HALF_BITS, number & HALF_MASK);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ self.mix(round, right));
        }
        (left << HALF_BITS) | right
    }

    fn back(&self, number: u64) -> u64 {
        let (mut left, mut right) = (number >> HALF_BITS, number & HALF_MASK);
        for round in (0..ROUNDS).rev() {
            (left, right) = (right ^ self.mix(round, left), left);
        }
        (left << HALF_BITS) | right
    }

    fn mix(&self, round: u8, half: u64) -> u64 {
        let mut input = [0; 9];
        input[0] = round;
        input[1..].copy_from_slice(&half.to_le_bytes());
        let mut mixed = [0; 8];
        mixed.copy_from_slice(&blake3::keyed_hash(&self.0, &input).as_bytes()[..8]);
        u64::from_le_bytes(mixed) & HALF_MASK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_hidden_from_all_but_readers_of_the_whole_log() {
        let folder = tempfile::tempdir().unwrap();
        let key = ViewKey::open(folder.path()).unwrap();
        assert!(key.of(&AuditScope::All).is_none());
        let scopes =
            [AuditScope::Owner("ada".into()), AuditScope::Owner("eve".into()), AuditScope::Org("ada".into())];
        let views = scopes.clone().map(|scope| key.of(&scope).unwrap());
        let again = ViewKey::open(folder.path()).unwrap().of(&scopes[0]).unwrap();
        let mut grows = 0;
        for seq in (1..2_000).chain([u64::from(u32::MAX), (1 << BITS) - 1]) {
            let shown = views[0].hide(seq);
            assert!(shown >> BITS == 0 && views[0].reveal(shown) == seq, "{seq}");
            assert_eq!(again.hide(seq), shown, "{seq}: also after a restart");
            assert!(views[1].hide(seq) != shown && views[2].hide(seq) != shown, "{seq}");
            grows += u64::from(views[0].hide(seq + 1) > shown);
        }
        assert!((700..1_300).contains(&grows), "no order is kept: {grows}");
        assert_eq!((views[0].reveal(0), views[0].reveal(u64::MAX)), (0, u64::MAX), "numbers of no record");
    }
}
