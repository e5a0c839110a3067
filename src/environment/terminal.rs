use std::fmt;

use super::code::Severity;
use super::finding::Finding;
use super::report::Report;

/// A report with colours, from [`Report::coloured`].
#[derive(Debug)]
pub struct Coloured<'a>(&'a Report);

/// Columns of a line.
const WIDTH: usize = 110;
/// Where texts begin.
const INDENT: usize = 17;
/// The width of a label and the space behind it.
const LABEL: usize = 6;

impl Report {
    /// The same text with colours by severity, as ANSI escape sequences. Whether they are wanted is for the caller to say: usually where
    /// the output is a terminal and the variable NO_COLOR is not set, or set to nothing.
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
    pub fn coloured(&self) -> Coloured<'_> {
        Coloured(self)
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, colours: bool) -> fmt::Result {
        writeln!(
            f,
            "candle-headroom {}: {}",
            env!("CARGO_PKG_VERSION"),
            self.summary()
        )?;
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
        for (finding, gpus) in together(self.findings()) {
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

impl fmt::Display for Coloured<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write(f, true)
    }
}

/// Findings that differ in their GPU alone as one, with the numbers of all: large machines have many of a kind.
fn together(findings: &[Finding]) -> Vec<(&Finding, Vec<u32>)> {
    let mut together: Vec<(&Finding, Vec<u32>)> = Vec::new();
    for finding in findings {
        if finding.gpu.is_none() {
            together.push((finding, Vec::new()));
            continue;
        }
        let is_alike = |(other, gpus): &&mut (&Finding, Vec<u32>)| {
            !gpus.is_empty() && other.code == finding.code && other.seen == finding.seen
        };
        match together.iter_mut().find(is_alike) {
            Some((_, gpus)) => gpus.extend(finding.gpu),
            None => together.push((finding, finding.gpu.into_iter().collect())),
        }
    }
    together
}

fn about(gpus: &[u32]) -> String {
    match gpus {
        [] => String::new(),
        [gpu] => format!("GPU {gpu}: "),
        gpus => {
            let numbers: Vec<_> = gpus.iter().map(u32::to_string).collect();
            format!("GPUs {}: ", numbers.join(", "))
        }
    }
}

fn write_finding(
    f: &mut fmt::Formatter<'_>,
    finding: &Finding,
    gpus: &[u32],
    colours: bool,
) -> fmt::Result {
    let colour = match finding.severity() {
        Severity::Ok => "\x1b[32m",
        Severity::Note => "\x1b[36m",
        Severity::Warning => "\x1b[33m",
        Severity::Failure => "\x1b[1;31m",
    };
    let (on, off) = match colours {
        true => (colour, "\x1b[0m"),
        false => ("", ""),
    };
    write!(
        f,
        "{on}{:<8}{off} {}  ",
        finding.severity(),
        finding.code.id
    )?;
    let gpu = about(gpus);
    if finding.severity() == Severity::Ok {
        let line = format!("{gpu}{}: {}", finding.code.title, printable(&finding.seen));
        return write_wrapped(f, &line, INDENT);
    }
    write_wrapped(f, &format!("{gpu}{}", finding.code.title), INDENT)?;
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
    // In one line whatever its length, so that it can be copied.
    match finding.command.is_empty() {
        true => Ok(()),
        false => writeln!(
            f,
            "{:INDENT$}{:<LABEL$}{}",
            "",
            "run",
            printable(&finding.command)
        ),
    }
}

/// Files and libraries may hold anything, escape sequences for the terminal included.
fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
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
