//! Merges the operations of several commits into few statements.

use std::collections::{HashSet, VecDeque};

use super::rows::Op;
use super::tables::{Statement, Table};
use super::values::{Cell, columns};

/// Merges the operations of commits of different sessions. The order within each commit is kept.
pub(super) fn statements(commits: Vec<Vec<Op>>) -> Vec<Statement> {
    let mut queues: Vec<VecDeque<Op>> = commits.into_iter().map(VecDeque::from).collect();
    let mut statements = vec![];
    // Commits of the same kind write the same tables in the same order, so that one statement serves all of them.
    while let Some(table) = next_table(&queues) {
        let mut rows = vec![];
        for queue in &mut queues {
            let before = rows.len();
            while queue.front().is_some_and(|op| op.table == table)
                && !(table.is_sequential() && rows.len() > before)
            {
                rows.extend(queue.pop_front().map(|op| op.cells));
            }
        }
        statements.push(Statement { sql: table.sql(), columns: columns(last_rows(table, rows)) });
    }
    statements
}

/// The table of the next statement: that of the commit with the most operations left.
fn next_table(queues: &[VecDeque<Op>]) -> Option<Table> {
    queues.iter().max_by_key(|queue| queue.len())?.front().map(|op| op.table)
}

/// Keeps the last of several rows with the same key, since a statement may write a row only once.
fn last_rows(table: Table, rows: Vec<Vec<Cell>>) -> Vec<Vec<Cell>> {
    let key_cells = table.key_cells();
    if key_cells == 0 || rows.len() < 2 {
        return rows;
    }
    let mut seen = HashSet::new();
    let mut kept: Vec<Vec<Cell>> =
        rows.into_iter().rev().filter(|row| seen.insert(format!("{:?}", &row[..key_cells]))).collect();
    kept.reverse();
    kept
}
