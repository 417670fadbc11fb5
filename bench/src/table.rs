//! The table of results: one line per measurement.

/// The results of all benchmarks.
#[derive(Debug, Default)]
pub(crate) struct Table {
    lines: Vec<[String; COLUMNS]>,
    notes: Vec<String>,
}

const COLUMNS: usize = 8;

/// The target of a measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Goal {
    /// `ours` must be at least this.
    AtLeast(f64),
    /// `ours` must be at most this.
    AtMost(f64),
    /// `ours / baseline` must be at least this.
    RatioAtLeast(f64),
    /// `ours / baseline` must be at most this.
    RatioAtMost(f64),
    /// `ours - baseline` must be at most this.
    DifferenceAtMost(f64),
    /// No target.
    None,
}

const HEADER: [&str; COLUMNS] = ["measure", "ours", "baseline", "ratio", "goal", "met", "profile", "batched"];

/// The profile that this program was built with: the folder of the executable is named after it.
fn profile() -> String {
    let program = std::env::current_exe().unwrap();
    let folder = program.parent().and_then(|folder| folder.file_name());
    folder.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

impl Table {
    /// Adds a line; `unit` follows the numbers.
    pub(crate) fn line(
        &mut self,
        measure: impl Into<String>,
        ours: f64,
        baseline: Option<(f64, &str)>,
        unit: &str,
        goal: Goal,
    ) {
        let ratio = baseline.map(|(baseline, _)| ours / baseline);
        self.line_with_ratio(measure, ours, baseline, ratio, unit, goal);
    }

    /// Adds a line whose ratio is not that of its two numbers, for example a median of ratios.
    pub(crate) fn line_with_ratio(
        &mut self,
        measure: impl Into<String>,
        ours: f64,
        baseline: Option<(f64, &str)>,
        ratio: Option<f64>,
        unit: &str,
        goal: Goal,
    ) {
        let with_unit = |number: f64| format!("{} {unit}", format_number(number)).trim_end().to_owned();
        let ratio_value = ratio.unwrap_or(f64::NAN);
        let (goal, met) = match goal {
            Goal::AtLeast(minimum) => (format!("≥ {}", with_unit(minimum)), Some(ours >= minimum)),
            Goal::AtMost(maximum) => (format!("≤ {}", with_unit(maximum)), Some(ours <= maximum)),
            Goal::RatioAtLeast(minimum) => (format!("ratio ≥ {minimum}"), Some(ratio_value >= minimum)),
            Goal::RatioAtMost(maximum) => (format!("ratio ≤ {maximum}"), Some(ratio_value <= maximum)),
            Goal::DifferenceAtMost(more) => {
                let baseline = baseline.map_or(f64::NAN, |(baseline, _)| baseline);
                (format!("baseline + {}", with_unit(more)), Some(ours - baseline <= more))
            }
            Goal::None => (String::new(), None),
        };
        let met = met.map_or("", |met| if met { "yes" } else { "NO" });
        self.lines.push([
            measure.into(),
            with_unit(ours),
            baseline.map_or_else(String::new, |(baseline, name)| format!("{} ({name})", with_unit(baseline))),
            ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
            goal,
            met.into(),
            profile(),
            String::new(),
        ]);
        if let Some(line) = self.lines.last() {
            eprintln!("  {}", line.join(" | "));
        }
    }

    /// Notes that the last line profits from work that is batched for several callers.
    pub(crate) fn batched(&mut self, what: &str) {
        if let Some(line) = self.lines.last_mut() {
            line[COLUMNS - 1] = what.into();
        }
    }

    /// Adds a note below the table.
    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    pub(crate) fn print(&self, markdown: bool) {
        let head = HEADER.map(str::to_owned);
        let width = |column: usize| {
            let cells = self.lines.iter().chain([&head]).map(|line| line[column].chars().count());
            cells.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..HEADER.len()).map(width).collect();
        let (edge, gap) = if markdown { ("|", " | ") } else { ("", "  ") };
        let print = |line: &[String; COLUMNS]| {
            let cells: Vec<String> =
                (line.iter().zip(&widths)).map(|(cell, width)| format!("{cell:width$}")).collect();
            println!("{}", format!("{edge} {} {edge}", cells.join(gap)).trim());
        };
        print(&head);
        let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
        println!("{}", format!("{edge} {} {edge}", rule.join(gap)).trim());
        self.lines.iter().for_each(print);
        for note in &self.notes {
            println!("{}{note}", if markdown { "\n" } else { "" });
        }
    }
}

/// Formats a number with three digits and thousands separators.
fn format_number(number: f64) -> String {
    match number.abs() {
        size if size >= 1000.0 => {
            let digits = format!("{number:.0}");
            let mut text = String::new();
            for (at, digit) in digits.chars().enumerate() {
                if at > 0 && (digits.len() - at) % 3 == 0 {
                    text.push(',');
                }
                text.push(digit);
            }
            text
        }
        size if size >= 100.0 => format!("{number:.0}"),
        size if size >= 10.0 => format!("{number:.1}"),
        _ => format!("{number:.2}").trim_end_matches('0').trim_end_matches('.').to_owned(),
    }
}
