//! The example `train_text` on several ranks, as launchers start it.

#[cfg(feature = "mpi")]
use std::path::Path;
use std::process::{Command, Output};

#[cfg(feature = "mpi")]
use crate::train_text::figure;
use crate::train_text::program;

#[cfg(feature = "mpi")]
const SHORT: [&str; 4] = ["--batch", "16", "--context", "32"];

/// What both outputs hold, for messages.
fn text(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|part| String::from_utf8_lossy(part));
    format!("{}\n{out}\n{err}", output.status)
}

/// Runs the program without a launcher, with variables as one would set them.
fn with_variables(variables: &[(&str, &str)], arguments: &[&str]) -> Output {
    let mut command = Command::new(program());
    let variables = variables.iter().copied();
    command.args(arguments).envs(variables).output().unwrap()
}

#[test]
fn variables_of_launchers_that_do_not_fit_are_refused_in_one_line() {
    let mpirun = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];
    let torchrun = [("RANK", "0"), ("WORLD_SIZE", "2")];
    for (variables, arguments, words) in [
        (&mpirun[..], &[][..], "give `--ranks` to train one together"),
        (&torchrun, &[], "give `--ranks` to train one together"),
        (
            &torchrun,
            &["--ranks"],
            "RANK=0, WORLD_SIZE=2, but MASTER_ADDR and MASTER_PORT are not set",
        ),
        (
            &torchrun[..1],
            &["--ranks"],
            "RANK=0 is set without WORLD_SIZE",
        ),
        #[cfg(not(feature = "mpi"))]
        (&mpirun, &["--ranks"], "build with the feature `mpi`"),
        (&[], &["--ranks", "--audit"], "--audit needs one process"),
    ] {
        let output = with_variables(variables, arguments);
        let all = text(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {all}");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains(words), "{arguments:?}: {all}");
        assert_eq!(errors.lines().count(), 1, "{arguments:?}: {all}");
    }
}

/// One process is a group of one.
#[test]
fn without_a_launcher_it_trains_alone() {
    let output = with_variables(
        &[],
        &["--ranks", "--steps", "1", "--batch", "2", "--context", "8"],
    );
    let all = text(&output);
    assert!(output.status.success(), "{all}");
    assert!(
        all.contains("step 1: loss") && !all.contains(" ranks"),
        "{all}"
    );
}

/// Runs one program for each list of arguments under `mpirun`, which neither ends the others where one fails nor waits for ever.
/// Each process then prints its status.
#[cfg(feature = "mpi")]
fn mpirun(ranks: &[&[&str]]) -> Output {
    let mut command = Command::new("mpirun");
    command.args(["--oversubscribe", "--bind-to", "none", "--timeout", "120"]);
    command.arg("--enable-recovery");
    for (rank, arguments) in ranks.iter().enumerate() {
        if rank > 0 {
            command.arg(":");
        }
        let program = program();
        command.args(["-n", "1", "sh", "-c", "\"$0\" \"$@\"; echo \"status $?\""]);
        command.arg(program).args(*arguments);
    }
    // The tests run as root in containers.
    command.envs([
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("RAYON_NUM_THREADS", "1"),
    ]);
    command.output().expect("mpirun: install Open MPI")
}

/// The losses that a run printed, with their steps.
#[cfg(feature = "mpi")]
fn losses(output: &str) -> Vec<(u64, f64)> {
    let loss = |line: &str| {
        let (step, rest) = line.strip_prefix("step ")?.split_once(": loss ")?;
        let (loss, _) = rest.split_once(',')?;
        Some((step.parse().ok()?, loss.parse().ok()?))
    };
    output.lines().filter_map(loss).collect()
}

/// The same global batches, so the same losses, whatever each rank does to fit them. Sums are rounded in another order: 1e-7 of a loss of 5,
/// which Adam's division enlarges where gradients are small. Four decimals are printed.
#[cfg(feature = "mpi")]
#[test]
fn ranks_learn_as_one_process_does() {
    let options = [&SHORT[..], &["--steps", "10", "--budget", "16MiB"]].concat();
    let ranks = [&options[..], &["--ranks"]].concat();
    let alone = text(&with_variables(&[], &options));
    let expected = losses(&alone);
    assert_eq!(expected.len(), 10, "{alone}");
    // Three ranks have 5, 5 and 6 samples.
    for size in [2, 3] {
        let output = mpirun(&vec![&ranks[..]; size]);
        let all = text(&output);
        assert_eq!(all.matches("status 0").count(), size, "{all}");
        let found = losses(&all);
        assert_eq!(found.len(), expected.len(), "one rank talks: {all}");
        for (one, other) in expected.iter().zip(&found) {
            assert_eq!(one.0, other.0, "{all}");
            assert!((one.1 - other.1).abs() <= 2e-4, "{one:?}, alone {other:?}");
        }
        assert!(
            all.contains(&format!("16 samples on {size} ranks")),
            "{all}"
        );
        assert!(figure(&all, "peak_over_budget") <= 1.05, "{all}");
    }
}

/// Also where training has failed: the last run's budget fits no sample. Both files show both ranks.
#[cfg(feature = "mpi")]
#[test]
fn one_page_and_one_trace_show_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for (option, given, more, status) in [
        ("--report", "run.html", "26MiB", "status 0"),
        ("--trace", "trace.json", "26MiB", "status 0"),
        ("--report", "failed.html", "3MiB", "status 2"),
    ] {
        let given = file(given);
        let own = ["--ranks", "--steps", "3", "--budget", more, option, &given];
        let options = [&SHORT[..], &own].concat();
        let all = text(&mpirun(&[&options, &options]));
        assert_eq!(all.matches(status).count(), 2, "{all}");
        let stem = given.rsplit_once('.').unwrap().0;
        let [page, trace] = ["html", "json"].map(|ending| {
            std::fs::read_to_string(format!("{stem}.{ending}")).expect("a file of both ranks")
        });
        for rank in [0, 1] {
            let name = format!("rank {rank} on ");
            assert!(trace.contains(&name), "{name}: {all}");
        }
        assert_eq!(page.matches("\"host\":").count(), 2, "{all}");
        assert_eq!(
            all.contains(&format!("{stem}.html: open it")),
            status == "status 0",
            "{all}"
        );
    }
    let files = folder.path().read_dir().unwrap().count();
    assert_eq!(files, 6, "rank 0 alone writes");
}

/// From two ranks to three and to one process, with the losses of a run that was never interrupted.
#[cfg(feature = "mpi")]
#[test]
fn another_number_of_ranks_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("run");
    let options = |steps, more: &[&'static str]| -> Vec<String> {
        let folder: &Path = &folder;
        let saving = ["--unlimited", "--steps", steps, "--checkpoint"];
        let all = [&SHORT[..], &saving, &[folder.to_str().unwrap()], more].concat();
        all.into_iter().map(str::to_owned).collect()
    };
    let run = |ranks: usize, options: Vec<String>| {
        let options: Vec<_> = options.iter().map(String::as_str).collect();
        let output = match ranks {
            1 => with_variables(&[], &options),
            _ => mpirun(&vec![&options[..]; ranks]),
        };
        let all = text(&output);
        assert!(output.status.success(), "{all}");
        assert!(!all.contains("status 2"), "{all}");
        losses(&all)
    };
    let mut found = run(2, options("4", &["--ranks"]));
    found.extend(run(3, options("7", &["--ranks", "--resume"])));
    found.extend(run(1, options("10", &["--resume"])));
    let alone = [&SHORT[..], &["--unlimited", "--steps", "10"]].concat();
    let expected = run(1, alone.into_iter().map(str::to_owned).collect());
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (one, other) in expected.iter().zip(&found) {
        assert_eq!(one.0, other.0, "{found:?}");
        assert!((one.1 - other.1).abs() <= 2e-4, "{one:?}, alone {other:?}");
    }
}

/// Each rank ends with one line of its own and status 2, and none waits.
#[cfg(feature = "mpi")]
#[test]
fn wrong_use_ends_every_rank_with_one_line() {
    let short = [&SHORT[..], &["--steps", "3", "--ranks"]].concat();
    let more = |more: &[&'static str]| [&short[..], more].concat();
    let (alone, longer) = (
        ["--steps", "3"],
        [&SHORT[..], &["--steps", "4", "--ranks"]].concat(),
    );
    let (tight, missing, wide) = (
        more(&["--budget", "1KiB"]),
        more(&["no-such-file"]),
        more(&["--seed", "7"]),
    );
    for (ranks, words) in [
        ([&alone[..], &alone], ["give `--ranks`", "give `--ranks`"]),
        ([&tight, &tight], ["rank 0: ", "rank 1: "]),
        (
            [&short, &longer],
            [
                "rank 0: rank 1 has `--steps 4`",
                "rank 1: rank 1 has `--steps 4`",
            ],
        ),
        (
            [&short, &wide],
            ["rank 0: rank 1 has `--seed 7`", "rank 1: "],
        ),
        (
            [&short, &missing],
            ["rank 0: rank 1 lost in", "rank 1: cannot read no-such-file"],
        ),
    ] {
        let output = mpirun(&ranks);
        let all = text(&output);
        assert_eq!(all.matches("status 2").count(), 2, "{all}");
        let errors = String::from_utf8_lossy(&output.stderr);
        // mpirun may write of its own where a rank ends before the others.
        let own = |line: &&str| !line.contains("PMIX ERROR");
        let lines: Vec<_> = errors.lines().filter(own).collect();
        assert_eq!(lines.len(), 2, "{all}");
        for words in words {
            let has = |line: &&str| line.starts_with("error: ") && line.contains(words);
            assert!(lines.iter().any(has), "{words}: {all}");
        }
        assert!(!all.contains("step 1"), "{all}");
    }
}
