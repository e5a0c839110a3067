//! Promise 10, no panic and no global state: bad input is an error that names it. Every builder with settings at random: settings.rs; what
//! strangers have written: hostile/, and crates/cli/tests/commands/hostile.rs; the allocator: tests/support/tracked.rs. Process-wide settings
//! that are restored: tests/host/memory.rs, tests/cuda/memory.rs.

use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::BatchPolicy;
use candle_headroom::{AccumulatingTrainer, AdaptiveTrainer, Error, GradientAccumulator, Loss};

use crate::support::{Mlp, accumulate_means, accumulating, read, sgd, snapshot};

#[derive(Debug)]
struct Constant(usize);

impl BatchPolicy for Constant {
    fn size(&self, _: usize) -> usize {
        self.0
    }
    fn failed(&mut self, _: &candle_headroom::batch::Failed<'_>) {}
}

#[test]
fn bad_input_is_named_before_anything_runs() {
    let model = Mlp::new(DType::F32);
    let build = |policy: usize| {
        AdaptiveTrainer::builder(sgd(&model.vars, 0.1))
            .policy(Constant(policy))
            .build()
            .unwrap()
    };
    let before = snapshot(&model.vars);
    let (x, y) = Mlp::data(4, DType::F32);
    let never = |_, _: &_| -> candle_core::Result<Tensor> { panic!("called") };
    let empty = x.narrow(0, 0, 0).unwrap();
    let error = build(1).step(&empty, never).unwrap_err();
    assert!(error.to_string().contains("empty"), "{error}");
    let scalar = Tensor::zeros((), DType::F32, &Device::Cpu).unwrap();
    let error = build(1).step(&(&scalar, &y), |_, _| -> candle_core::Result<Tensor> {
        panic!("called")
    });
    assert!(error.unwrap_err().to_string().contains("0-dimensional"));

    // A loss of the wrong shape, and one that depends on nothing.
    let error = build(2).step(&x, |x, _| model.forward(&x)).unwrap_err();
    assert!(error.is_loss(), "{error}");
    let error = build(2).step(&x, |x, _| x.sum_all()).unwrap_err();
    assert!(matches!(error, Error::UnreachedParameters(_)), "{error}");
    assert_eq!(snapshot(&model.vars), before);

    // A buffer that is not a variable.
    let builder = AdaptiveTrainer::builder(sgd(&model.vars, 0.1)).buffers([&x]);
    let error = builder.build().unwrap_err();
    assert!(error.to_string().contains("buffer 0"), "{error}");
}

#[test]
fn a_size_out_of_range_is_clamped() {
    let model = Mlp::new(DType::F32);
    let batch = Mlp::data(4, DType::F32);
    for (size, sizes) in [(0, vec![1; 4]), (5, vec![4]), (usize::MAX, vec![4])] {
        let builder = AdaptiveTrainer::builder(sgd(&model.vars, 0.1));
        let mut trainer = builder.policy(Constant(size)).build().unwrap();
        let report = trainer.step(&batch, |(x, y), _| model.loss(&x, &y));
        assert_eq!(report.unwrap().sizes, sizes, "{size}");
    }
}

#[test]
fn bad_input_is_named_and_changes_nothing() {
    let model = Mlp::new(DType::F32);
    let mut accumulator = accumulate_means(&model, &[5], DType::F32);
    let before = read(&model.vars, &accumulator);
    let scalar = || {
        model
            .forward(&Mlp::data(2, DType::F32).0)
            .unwrap()
            .sum_all()
            .unwrap()
    };
    for (loss, samples, word) in [
        (Loss::Mean(model.vars[0].as_tensor().clone()), 1, "shape"),
        (Loss::Mean(scalar()), 0, "0 samples"),
        (Loss::sum(scalar(), -1.), 1, "-1"),
        (Loss::sum(scalar(), f64::NAN), 1, "NaN"),
        (Loss::sum(scalar(), f64::INFINITY), 1, "inf"),
        (Loss::sum(scalar(), 1e-40), 1, "1e-40"),
    ] {
        let error = accumulator.add(loss, samples).unwrap_err();
        assert!(error.is_loss(), "{error}");
        assert!(error.to_string().contains(word), "{error}");
        assert_eq!(read(&model.vars, &accumulator), before);
        assert_eq!(accumulator.samples(), 5);
    }

    let build = |vars: &[Var]| GradientAccumulator::builder(sgd(vars, 0.1)).build();
    let parameter = |vars: &[Var]| match build(vars).unwrap_err() {
        error if error.is_parameter() => error.to_string(),
        error => panic!("{error}"),
    };
    let var = &model.vars[0];
    assert!(parameter(&[]).starts_with("there is no floating-point Var"));
    let integer = Var::zeros(2, DType::U32, &Device::Cpu).unwrap();
    assert!(parameter(&[integer]).starts_with("there is no floating-point Var"));
    let twice = [var.clone(), model.vars[1].clone(), var.clone()];
    assert!(parameter(&twice).starts_with("parameter `2` is listed twice"));
}

#[test]
fn bad_input_is_named() {
    let model = Mlp::new(DType::F32);
    let builder = AccumulatingTrainer::builder(sgd(&model.vars, 0.1), 0);
    let error = builder.build().unwrap_err();
    assert!(
        error.is_policy() && error.to_string().ends_with("must be at least 1, got 0"),
        "{error}"
    );
    let mut trainer = accumulating(&model.vars, 2);
    let (x, _) = Mlp::data(2, DType::F32);
    let error = trainer
        .step(&x.narrow(0, 0, 0).unwrap(), |x, _| x.sum_all())
        .unwrap_err();
    assert!(error.is_batch(), "{error}");
}

/// All files of a folder of sources.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => sources(&path, found),
            false => found.extend(
                path.extension()
                    .is_some_and(|it| it == "rs")
                    .then_some(path),
            ),
        }
    }
}

/// clippy denies printing and `std::process::exit` in each library. It does not know these: only a process that was forked to wait in place of
/// this one, and a fault that a test has armed, end themselves.
#[test]
fn no_library_ends_the_process() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let libraries = ["src", "crates/environment/src", "crates/nn/src"];
    let mut files = Vec::new();
    libraries
        .iter()
        .for_each(|folder| sources(&root.join(folder), &mut files));
    assert!(files.len() > 100, "{}", files.len());
    let lints =
        "#![deny(clippy::dbg_macro,clippy::exit,clippy::print_stderr,clippy::print_stdout)]";
    for folder in libraries {
        let library = fs::read_to_string(root.join(folder).join("lib.rs")).unwrap();
        // However it is wrapped.
        let library: String = library.split_whitespace().collect();
        assert!(library.contains(lints), "{folder}");
    }
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let code = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.starts_with("//"));
        let calls = [
            "process::abort(",
            "process::exit(",
            "libc::abort(",
            "libc::exit(",
            "libc::_exit(",
            "low_level::exit(",
        ];
        let ends = calls.map(|call| code.clone().any(|line| line.contains(call)));
        let file = file.strip_prefix(root).unwrap();
        let is_known = [
            Path::new("src/testing/files.rs"),
            Path::new("crates/environment/src/patience.rs"),
        ]
        .contains(&file);
        assert!(is_known || ends == [false; 6], "{}", file.display());
    }
}
