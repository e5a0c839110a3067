//! Several ranks under `mpirun`.

use std::process::Command;

use super::{Files, base, figure, program, succeed, text};

/// Two ranks learn what one process learns: the same global batches, sums in another order. Four decimals are printed.
#[test]
fn two_ranks_learn_as_one_process_does() {
    let files = Files::new();
    let (data, alone, together) = (files.pairs(), files.path("alone"), files.path("together"));
    let common = [
        "--model",
        base(),
        "--steps",
        "6",
        "--learning-rate",
        "2e-3",
        "--sample",
        "0",
        "--eval",
        &data,
        &data,
    ];
    let alone = succeed(&[&common[..], &["--output", &alone]].concat());
    let mut command = Command::new("mpirun");
    command.args([
        "--oversubscribe",
        "--bind-to",
        "none",
        "--timeout",
        "240",
        "-n",
        "2",
    ]);
    command
        .arg(program())
        .args(common)
        .args(["--ranks", "--output", &together]);
    command.envs([
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("RAYON_NUM_THREADS", "1"),
    ]);
    let output = command.output().expect("mpirun: install Open MPI");
    let all = text(&output);
    assert!(output.status.success(), "{all}");
    for name in ["loss_first", "loss_last"] {
        let [one, two] = [&alone, &all].map(|said| figure(said, name));
        assert!(
            (one - two).abs() <= 2e-4 * one.max(1.),
            "{name}: {one}, on two ranks {two}: {all}"
        );
    }
    let [one, two] = [&alone, &all].map(|said| figure(said, "perplexity_after"));
    assert!((one / two - 1.).abs() < 1e-3, "{one}, on two ranks {two}");
    assert_eq!(
        all.matches("figure: finetune/loss_last").count(),
        1,
        "one rank talks: {all}"
    );
}
