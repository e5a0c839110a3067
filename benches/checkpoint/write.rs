use std::path::Path;
use std::process::Command;
use std::time::Instant;

use candle_headroom::checkpoint::Checkpoints;
use candle_headroom::{Error, Result};

use super::model::Job;
use super::support::{Contender, alternate, figure};

/// A checkpoint of 100 MB until it is on the disk, against `cp` and `sync` of its files.
pub fn measure(is_quick: bool) -> Result<()> {
    let rounds = if is_quick { 7 } else { 31 };
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).map_err(Error::external)?;
    let run = folder.path().join("run");
    let mut checkpoints = Checkpoints::builder(&run).keep_last(1).open()?;
    let mut job = Job::new(1)?;
    job.step()?;
    let source = folder.path().join("source");
    std::fs::rename(checkpoints.save_now(&job.trainer)?, &source).map_err(Error::external)?;
    let copy = folder.path().join("copy");
    let contenders = vec![
        Contender::timing_itself("save", || {
            let begun = Instant::now();
            checkpoints.save_now(&job.trainer).expect("a checkpoint");
            begun.elapsed()
        }),
        Contender::timing_itself("cp and sync", || {
            // As the checkpoint before is removed while one is saved, so is the copy before.
            let begun = Instant::now();
            let new = copy.with_extension("new");
            command("cp", &["-r".as_ref(), source.as_ref(), new.as_ref()]);
            let files = std::fs::read_dir(&new).expect("the copy");
            let files: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
            let files: Vec<&Path> = files.iter().map(|path| path.as_path()).collect();
            command("sync", &files);
            if copy.exists() {
                std::fs::remove_dir_all(&copy).expect("the copy before");
            }
            std::fs::rename(&new, &copy).expect("the copy");
            begun.elapsed()
        }),
    ];
    let rounds = alternate(contenders, rounds);
    rounds.print("100 MB on the disk", 1);
    figure(
        "checkpoint/write_vs_copy",
        rounds.ratio("save", "cp and sync"),
        "x",
    );
    Ok(())
}

fn command(program: &str, arguments: &[&Path]) {
    let status = Command::new(program).args(arguments).status();
    assert!(status.expect("the program").success(), "{program}");
}
