use std::fmt;

use super::code::Severity;
use super::finding::Finding;
use super::report::Report;

/// Columns of a line.
const WIDTH: usize = 110;
/// The column in which texts begin.
const INDENT: usize = 17;
/// The width of a label and the space behind it.
const LABEL: usize = 6;

impl Report {
    /// The same text with colours by severity, as ANSI escape sequences. Use it if the output is a terminal and the variable `NO_COLOR` is
    /// unset or empty.
    ///
    /// ```
    /// use std::io::{IsTerminal, stdout};
    /// use candle_headroom::Environment;
    ///
    /// let report = Environment::new().check();
    /// let no_colours = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    /// match stdout().is_terminal() && !no_colours {
    ///     true => println!("{}", report.coloured()),
    ///     false => println!("{report}"),
    /// }
    /// ```
    pub fn coloured(&self) -> impl fmt::Display + '_ {
        Coloured(self)
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, colours: bool) -> fmt::Result {
        let version = env!("CARGO_PKG_VERSION");
        writeln!(f, "candle-headroom {version}: {}", self.summary())?;
        let count = |severity| {
            let findings = self.findings().iter();
            findings
                .filter(|finding| finding.severity() == severity)
                .count()
        };
        writeln!(
            f,
            "failures: {}, warnings: {}, notes: {}, ok: {}\n",
            count(Severity::Failure),
            count(Severity::Warning),
            count(Severity::Note),
            count(Severity::Ok)
        )?;
        for (finding, gpus) in grouped(self.findings()) {
            write_finding(f, finding, &gpus, colours)?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, false)
    }
}

struct Coloured<'a>(&'a Report);

impl fmt::Display for Coloured<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write(f, true)
    }
}

/// Findings that differ only in their GPU as one, with the indexes of all GPUs.
fn grouped(findings: &[Finding]) -> Vec<(&Finding, Vec<String>)> {
    let mut groups: Vec<(&Finding, Vec<String>)> = Vec::new();
    for finding in findings {
        let gpu = finding.gpu.map(|gpu| gpu.to_string());
        let is_alike = |(other, gpus): &&mut (&Finding, Vec<String>)| {
            !gpus.is_empty() && other.code == finding.code && other.seen == finding.seen
        };
        match groups.iter_mut().find(is_alike) {
            Some((_, gpus)) if gpu.is_some() => gpus.extend(gpu),
            _ => groups.push((finding, gpu.into_iter().collect())),
        }
    }
    groups
}

fn write_finding(
    f: &mut fmt::Formatter<'_>,
    finding: &Finding,
    gpus: &[String],
    colours: bool,
) -> fmt::Result {
    let (on, off) = match (colours, finding.severity()) {
        (false, _) => ("", ""),
        (_, Severity::Ok) => ("\x1b[32m", "\x1b[0m"),
        (_, Severity::Note) => ("\x1b[36m", "\x1b[0m"),
        (_, Severity::Warning) => ("\x1b[33m", "\x1b[0m"),
        (_, Severity::Failure) => ("\x1b[1;31m", "\x1b[0m"),
    };
    let severity = finding.severity();
    write!(f, "{on}{severity:<8}{off} {}  ", finding.code.id)?;
    let title = match gpus {
        [] => finding.code.title.to_owned(),
        [gpu] => format!("GPU {gpu}: {}", finding.code.title),
        gpus => format!("GPUs {}: {}", gpus.join(", "), finding.code.title),
    };
    if severity == Severity::Ok {
        let line = format!("{title}: {}", printable(&finding.seen));
        return write_wrapped(f, &line, INDENT);
    }
    write_wrapped(f, &title, INDENT)?;
    for (label, text) in [
        ("seen", finding.seen.as_str()),
        ("so", &finding.leads_to),
        ("next", &finding.next_step),
    ] {
        if !text.is_empty() {
            write!(f, "{:INDENT$}{label:<LABEL$}", "")?;
            write_wrapped(f, &printable(text), INDENT + LABEL)?;
        }
    }
    if !finding.command.is_empty() {
        // In one line, so that it can be copied.
        let command = printable(&finding.command);
        writeln!(f, "{:INDENT$}{:<LABEL$}{command}", "", "run")?;
    }
    Ok(())
}

/// Replaces control characters: files and libraries may hold escape sequences.
fn printable(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Breaks a text at spaces; further lines are indented as the first is.
fn write_wrapped(f: &mut fmt::Formatter<'_>, text: &str, indent: usize) -> fmt::Result {
    let mut column = indent;
    for (index, word) in text.split_whitespace().enumerate() {
        let width = word.chars().count();
        if index > 0 && column + 1 + width > WIDTH {
            write!(f, "\n{:indent$}", "")?;
            column = indent;
        } else if index > 0 {
            f.write_str(" ")?;
            column += 1;
        }
        f.write_str(word)?;
        column += width;
    }
    f.write_str("\n")
}
