use std::fmt;

use super::{Finding, Report, Severity};

/// Columns of a line.
const WIDTH: usize = 110;
/// The column in which texts begin.
const INDENT: usize = 17;
/// The width of a label and the space behind it.
const LABEL: usize = 6;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = env!("CARGO_PKG_VERSION");
        writeln!(f, "candle-headroom {version}: {}", self.summary())?;
        let mut counts = [0; 4];
        for finding in self.findings() {
            counts[finding.severity() as usize] += 1;
        }
        let [ok, notes, warnings, failures] = counts;
        let line = format!("failures: {failures}, warnings: {warnings}, notes: {notes}, ok: {ok}");
        writeln!(f, "{line}\n")?;
        for (finding, gpus) in grouped(self.findings()) {
            write_finding(f, finding, &gpus)?;
        }
        Ok(())
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

fn write_finding(f: &mut fmt::Formatter<'_>, finding: &Finding, gpus: &[String]) -> fmt::Result {
    let severity = finding.severity();
    let colour = match severity {
        Severity::Ok => "32",
        Severity::Note => "36",
        Severity::Warning => "33",
        Severity::Failure => "1;31",
    };
    match f.alternate() {
        true => write!(f, "\x1b[{colour}m{severity:<8}\x1b[0m")?,
        false => write!(f, "{severity:<8}")?,
    }
    write!(f, " {}  ", finding.code.id)?;
    let title = match gpus {
        [] => finding.code.title.to_owned(),
        [gpu] => format!("GPU {gpu}: {}", finding.code.title),
        gpus => format!("GPUs {}: {}", gpus.join(", "), finding.code.title),
    };
    if severity == Severity::Ok {
        return write_wrapped(f, &format!("{title}: {}", finding.seen), INDENT);
    }
    write_wrapped(f, &title, INDENT)?;
    for (label, text) in [
        ("seen", finding.seen.as_str()),
        ("so", finding.code.leads_to),
        ("next", &finding.next_step),
    ] {
        if !text.is_empty() {
            write!(f, "{:INDENT$}{label:<LABEL$}", "")?;
            write_wrapped(f, text, INDENT + LABEL)?;
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
    for (index, word) in printable(text).split_whitespace().enumerate() {
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
