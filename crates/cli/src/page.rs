//! `headroom page`: what did memory do over a run?

use std::path::{Path, PathBuf};

use candle_headroom::timeline::SavedTrace;

use super::output::{Result, Status, print};

/// Write the browser page of a trace that was saved
///
/// TRACE is written by `Timeline::save_trace` or `Timeline::save_all`. The page
/// is one file that needs no network.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
#[command(after_help = "Exit status: 0 if the page was written, 2 if not.")]
pub struct Arguments {
    /// The trace, such as run.json
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// The page; - for standard output [default: TRACE ending in .html]
    #[arg(short, long, value_name = "PAGE")]
    output: Option<PathBuf>,
    /// The page's heading [default: the name of TRACE]
    #[arg(long)]
    title: Option<String>,
    /// Replace a page that exists
    #[arg(long)]
    force: bool,
}

pub fn run(arguments: &Arguments) -> Result<Status> {
    let trace = &arguments.trace;
    let output = arguments.output.clone();
    let output = output.unwrap_or_else(|| trace.with_extension("html"));
    let to_screen = output == Path::new("-");
    let shown = output.display();
    if !to_screen && is_same(trace, &output) {
        return Err(format!("{shown} is the trace: give the page another name with -o").into());
    }
    if !to_screen && output.is_file() && !arguments.force {
        return Err(format!(
            "{shown} exists: use --force to replace it, or -o to write another file"
        )
        .into());
    }
    let saved = SavedTrace::read(trace)?;
    let name = trace.file_stem().unwrap_or_default().to_string_lossy();
    let title = arguments.title.as_deref().unwrap_or(&name);
    match to_screen {
        true => {
            let mut page = Vec::new();
            saved.write_page(title, &mut page)?;
            print(&String::from_utf8_lossy(&page))?;
        }
        false => {
            saved.save_page(title, &output)?;
            print(&format!("{shown}\n"))?;
        }
    }
    Ok(Status::Good)
}

fn is_same(trace: &Path, output: &Path) -> bool {
    let found = [trace, output].map(Path::canonicalize);
    matches!(found, [Ok(trace), Ok(output)] if trace == output)
}
