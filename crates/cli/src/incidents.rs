//! `headroom incidents`: what went wrong in a run?

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::stdin;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use candle_headroom::incident::{Incident, IncidentKind, IncidentSummary, Incidents};
use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use serde_json::json;
use textwrap::{Options, WordSeparator, WordSplitter};

use super::output::{self, Result, Status, plain, say};

/// The most that is read from standard input, in bytes.
const MOST: u64 = 1 << 28;

/// The columns of a line.
const WIDTH: usize = 80;

/// List the incidents of a run, and a summary
///
/// FILE is written by an `IncidentLog`, one line of JSON for each incident. Lines
/// that are not incidents, such as an incomplete last one, are counted and
/// skipped. Times are in UTC.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
#[command(after_help = "\
Exit status: 0 if no step failed, 1 if one did or a device was lost (among the
incidents that match), 2 for bad input.")]
pub struct Arguments {
    /// A log, with FILE.1 before it if there is one; - for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Only since then: 30m, 2h or 3d ago, or 2026-11-23T14:02
    #[arg(long, value_name = "TIME", value_parser = since)]
    since: Option<u64>,
    /// Only these kinds, such as exhausted,failed
    #[arg(long, value_name = "KINDS", value_parser = kind, value_delimiter = ',')]
    kind: Vec<IncidentKind>,
    /// Only incidents of this rank
    #[arg(long)]
    rank: Option<usize>,
    /// Print the summary alone
    #[arg(long)]
    summary: bool,
    /// Print the whole report of each exhaustion
    #[arg(long, conflicts_with_all = ["summary", "json"])]
    long: bool,
    /// Print the incidents as lines of JSON, or with --summary one object
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<Status> {
    let mut all = Incidents::default();
    for file in &arguments.files {
        let read = read(file)?;
        all.list.extend(read.list);
        all.unreadable += read.unreadable;
    }
    all.list.retain(|incident| arguments.wants(incident));
    if arguments.files.len() > 1 {
        // Within one file the order is that of writing, also where the clock was set back.
        all.list.sort_by_key(|incident| incident.taken_unix_ms);
    }
    let summary = all.summary();
    output::print(&match (arguments.json, arguments.summary) {
        (true, true) => as_object(&all, &summary),
        (true, false) => as_lines(&all)?,
        (false, only_summary) => {
            let shown = all.list.iter().filter(|_| !only_summary);
            let mut text = String::new();
            for incident in shown {
                arguments.show(incident, &mut text)?;
            }
            text + &summary_of(&all, &summary)
        }
    })?;
    if arguments.json && !arguments.summary && all.unreadable > 0 {
        say("warning", &unreadable(&all));
    }
    let failures = summary.count(&[IncidentKind::Failed, IncidentKind::Fault]);
    Ok(Status::of(failures > 0))
}

impl Arguments {
    fn wants(&self, incident: &Incident) -> bool {
        let is_recent = incident.taken_unix_ms >= self.since.unwrap_or(0);
        let is_of_rank = self.rank.is_none() || incident.rank == self.rank;
        let is_of_kind = self.kind.is_empty() || self.kind.contains(&incident.kind);
        is_recent && is_of_rank && is_of_kind
    }

    /// A heading, and what happened below it.
    fn show(&self, incident: &Incident, text: &mut String) -> Result<()> {
        let time = shown(incident.taken_unix_ms);
        let task = incident.task.map(|task| task.to_string());
        let task = task.as_deref().unwrap_or("step");
        write!(text, "{time}  {task} {}", incident.step)?;
        if let Some(rank) = incident.rank {
            write!(text, ", rank {rank}")?;
        }
        writeln!(text, ": {}", incident.kind)?;
        match incident.exhausted.as_ref().filter(|_| self.long) {
            Some(exhausted) => {
                for line in format!("{exhausted:#}").lines() {
                    writeln!(text, "  {}", plain(line))?;
                }
            }
            None => wrap(&incident.text, "  ", text),
        }
        if let Some(plan) = &incident.plan {
            wrap(&plan.to_string(), "  ", text);
        }
        text.push('\n');
        Ok(())
    }
}

fn read(file: &Path) -> Result<Incidents> {
    let incidents = match file.to_str() {
        Some("-") => {
            let bytes = output::read_all(stdin().lock(), MOST, &"standard input")?;
            // An incomplete line may end within a character.
            Incidents::parse(&String::from_utf8_lossy(&bytes))
        }
        _ => Incidents::read(file)?,
    };
    match (incidents.list.len(), incidents.unreadable) {
        (0, lines @ 1..) => Err(format!(
            "{}: no incident in {lines} lines; pass a file that an `IncidentLog` wrote",
            file.display()
        )
        .into()),
        _ => Ok(incidents),
    }
}

fn kind(text: &str) -> std::result::Result<IncidentKind, String> {
    const KINDS: &str = "exhausted, retried, grown, shrunk, recomputing, keeping, restarted, over_limit, cut_checked, \
        continued_elsewhere, failed, fault, other";
    let read = serde_json::from_value::<IncidentKind>(json!(text)).ok();
    // A name that the library does not know is read as another kind.
    let known = read.filter(|kind| kind.to_string() == text);
    known.ok_or_else(|| format!("use {KINDS}"))
}

fn unreadable(all: &Incidents) -> String {
    match all.unreadable {
        1 => "1 line is not an incident and was skipped".to_owned(),
        lines => format!("{lines} lines are not incidents and were skipped"),
    }
}

fn summary_of(all: &Incidents, summary: &IncidentSummary) -> String {
    let mut text = String::new();
    wrap(&summary.to_string(), "", &mut text);
    if all.unreadable > 0 {
        text += &unreadable(all);
        text.push('\n');
    }
    text
}

/// Appends the words in indented lines.
fn wrap(text: &str, indent: &str, to: &mut String) {
    let options = Options::new(WIDTH)
        .initial_indent(indent)
        .subsequent_indent(indent)
        .break_words(false)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation);
    let text = plain(text);
    let words: Vec<_> = text.split_whitespace().collect();
    *to += &textwrap::fill(&words.join(" "), options);
    to.push('\n');
}

fn as_lines(all: &Incidents) -> Result<String> {
    let lines = all.list.iter().map(serde_json::to_string);
    let lines = lines.map(|line| line.map(|line| line + "\n"));
    Ok(lines.collect::<serde_json::Result<_>>()?)
}

fn as_object(all: &Incidents, summary: &IncidentSummary) -> String {
    let phases = summary.phases.iter().map(|(phase, count)| {
        let name = phase.map_or("unknown".to_owned(), |phase| phase.to_string());
        (name, count)
    });
    let object = json!({
        "incidents": all.list.len(),
        "unreadable": all.unreadable,
        "kinds": summary.kinds,
        "phases": phases.collect::<BTreeMap<_, _>>(),
        "causes": summary.causes,
        "first_exhaustion_unix_ms": summary.between.map(|(first, _)| unix_ms(first)),
        "last_exhaustion_unix_ms": summary.between.map(|(_, last)| unix_ms(last)),
        "neighbour_bytes": summary.neighbour,
    });
    format!("{object:#}\n")
}

fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// A time in UTC, such as `2026-11-23 14:02:11`.
fn shown(unix_ms: u64) -> String {
    let time = i64::try_from(unix_ms).ok().map(Timestamp::from_millisecond);
    match time {
        Some(Ok(time)) => time.strftime("%F %T").to_string(),
        _ => "after the year 9999".to_owned(),
    }
}

/// Reads `90s`, `30m`, `2h` or `3d` before now, `2026-11-23`, or `2026-11-23 14:02[:11]` with a space or a `T`; in milliseconds since 1970.
fn since(text: &str) -> std::result::Result<u64, String> {
    before(text).or_else(|| point(text)).ok_or_else(|| {
        "use `30m`, `2h`, `3d`, `2026-11-23`, or `2026-11-23T14:02` (UTC)".to_owned()
    })
}

fn before(text: &str) -> Option<u64> {
    let units = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)];
    let mut units = units.iter();
    let (count, seconds) =
        units.find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)))?;
    // `parse` takes a sign too.
    let is_number = count.bytes().all(|byte| byte.is_ascii_digit());
    let count: u64 = count.parse().ok().filter(|_| is_number)?;
    let back = count.checked_mul(seconds * 1000)?;
    Some(unix_ms(SystemTime::now()).saturating_sub(back))
}

fn point(text: &str) -> Option<u64> {
    let text = text.strip_suffix('Z').unwrap_or(text).replace(' ', "T");
    let mut formats = ["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"].iter();
    let time = formats.find_map(|format| DateTime::strptime(format, &text).ok())?;
    let time = TimeZone::UTC.to_timestamp(time).ok()?;
    u64::try_from(time.as_millisecond()).ok()
}
