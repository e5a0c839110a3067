//! Checks the machine before a long job: what is wrong, by its code, and what to do about it.
//! Run: `cargo run --example environment`, for a job on a GPU with `-- cuda` or `-- cuda,mem=8GiB`.
//! Prints a summary and what is not in order; the exit status is 1 if the job cannot run here.

use std::process::ExitCode;

use candle_headroom::environment::{Environment, Requirement, Severity};

fn main() -> anyhow::Result<ExitCode> {
    let needed = std::env::args().nth(1).unwrap_or("cpu".to_owned());
    let needed: Requirement = needed.parse()?; // or `Requirement::cuda_training(bytes)`

    let report = Environment::new().check(); // `{report}` prints all of it
    println!("{}", report.summary());
    for gpu in report.gpus() {
        println!("GPU {}: {}", gpu.index, gpu.name.as_deref().unwrap_or("?"));
    }
    for finding in report.findings() {
        let (severity, code) = (finding.severity(), finding.code);
        if severity == Severity::Ok {
            continue;
        }
        println!("{severity} {}: {} ({})", code.id, code.title, finding.seen);
        if !finding.next_step.is_empty() {
            println!("  next: {}", finding.next_step);
        }
        if !finding.command.is_empty() {
            println!("  $ {}", finding.command);
        }
    }

    // Leaves out what concerns one GPU only, if another GPU can be used.
    let obstacles = report.obstacles(needed);
    for obstacle in &obstacles {
        println!("{needed} is not possible: {}", obstacle.code.id);
    }
    match obstacles.is_empty() {
        true => println!("{needed} is possible"),
        false => return Ok(ExitCode::FAILURE),
    }
    Ok(ExitCode::SUCCESS)
}
