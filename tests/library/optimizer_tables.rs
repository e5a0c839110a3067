//! The same gradients, step by step, as PyTorch's optimizers were given: tests/data/optimizers/make_tables.py.

use std::collections::HashMap;
use std::path::PathBuf;

use crate::support::flat;
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::optim::{
    Algorithm, Commit, Fused, Group, LossScale, ParamsAdam, ParamsAdamW, ParamsLion, ParamsSgd,
};
use safetensors::SafeTensors;

/// All words that a case can have: what is not listed here would be passed over in silence.
const WORDS: [&str; 20] = [
    "optimizer",
    "dtype",
    "steps",
    "parameters",
    "lr",
    "beta1",
    "beta2",
    "eps",
    "weight_decay",
    "momentum",
    "dampening",
    "nesterov",
    "lrs",
    "weight_decays",
    "clip_norm",
    "clip_value",
    "init_scale",
    "growth_factor",
    "backoff_factor",
    "growth_interval",
];

/// One optimizer's run.
struct Case<'a> {
    name: &'a str,
    words: HashMap<&'a str, &'a str>,
    tensors: &'a HashMap<String, Tensor>,
}

impl<'a> Case<'a> {
    fn new(name: &'a str, words: &'a str, tensors: &'a HashMap<String, Tensor>) -> Self {
        let words = words.split(' ').map(|word| word.split_once('=').unwrap());
        let words: HashMap<_, _> = words.collect();
        for word in words.keys() {
            assert!(WORDS.contains(word), "{name} has a word {word}");
        }
        Self {
            name,
            words,
            tensors,
        }
    }

    fn maybe(&self, key: &str) -> Option<f64> {
        self.words.get(key).map(|word| match *word {
            "true" => 1.,
            "false" => 0.,
            number => number.parse().unwrap(),
        })
    }

    fn number(&self, key: &str) -> f64 {
        self.maybe(key)
            .unwrap_or_else(|| panic!("{} has no {key}", self.name))
    }

    fn numbers(&self, key: &str) -> Option<Vec<f64>> {
        let words = self.words.get(key)?;
        Some(words.split(',').map(|word| word.parse().unwrap()).collect())
    }

    fn count(&self, key: &str) -> usize {
        self.words[key].parse().unwrap()
    }

    fn maybe_tensor(&self, path: &str) -> Option<&Tensor> {
        self.tensors.get(&format!("{}/{path}", self.name))
    }

    fn tensor(&self, path: &str) -> &Tensor {
        self.maybe_tensor(path)
            .unwrap_or_else(|| panic!("{} has no {path}", self.name))
    }

    fn scalar(&self, path: &str) -> Option<f64> {
        Some(flat(self.maybe_tensor(path)?)[0])
    }

    /// How far results may be off, relative to a tensor's largest value.
    fn tolerance(dtype: DType) -> f64 {
        match dtype {
            // Sums of a few products are associated in another way here; 6 steps leave some units of 2^-53.
            DType::F64 => 1e-14,
            // 2^29 times coarser; and PyTorch takes some factors in f32 that are taken in f64 here, the clipping's among them.
            DType::F32 => 2e-6,
            // The tables were made of numbers that round clearly: f32 arithmetic within 4 units gives the very same halves.
            _ => 0.,
        }
    }

    /// Compares with the table, and returns how far it is off.
    fn expect(&self, path: &str, found: &Tensor) -> f64 {
        let expected = self.tensor(path);
        assert_eq!(found.dims(), expected.dims(), "{} {path}", self.name);
        assert_eq!(found.dtype(), expected.dtype(), "{} {path}", self.name);
        let found_dtype = found.dtype();
        let (expected, found) = (flat(expected), flat(found));
        let largest = expected
            .iter()
            .fold(0f64, |max, value| max.max(value.abs()));
        let pairs = expected.iter().zip(&found);
        let error = pairs.fold(0f64, |max, (e, f)| {
            // Not `f64::max` alone, which passes over what is not a number.
            assert!(e.is_finite() && f.is_finite(), "{} {path}", self.name);
            max.max((e - f).abs())
        });
        let error = if error == 0. { 0. } else { error / largest };
        assert!(
            error <= Self::tolerance(found_dtype),
            "{} {path}: off by {error:e}",
            self.name
        );
        error
    }

    fn vars(&self) -> Vec<Var> {
        let parameters = 0..self.count("parameters");
        let vars = parameters.map(|i| Var::from_tensor(self.tensor(&format!("parameter/{i}"))));
        vars.collect::<Result<_, _>>().unwrap()
    }

    fn gradients(&self, step: usize, vars: &[Var]) -> GradStore {
        let mut store = GradStore::default();
        for (i, var) in vars.iter().enumerate() {
            if let Some(gradient) = self.maybe_tensor(&format!("gradient/{step}/{i}")) {
                store.insert(var, gradient.clone());
            }
        }
        store
    }

    fn build<A: Algorithm>(&self, vars: &[Var], params: A) -> Fused<A> {
        let mut builder = Fused::builder(Group::default()).params(params);
        let named = |i: usize| Group::from(vec![(i.to_string(), vars[i].clone())]);
        match (self.numbers("lrs"), self.numbers("weight_decays")) {
            (Some(lrs), Some(decays)) => {
                for (i, (lr, decay)) in lrs.iter().zip(decays).enumerate() {
                    let factor = lr / self.number("lr");
                    let group = named(i).learning_rate_factor(factor).weight_decay(decay);
                    builder = builder.group(group);
                }
            }
            _ => {
                let named = vars.iter().enumerate();
                let named = named.map(|(i, var)| (i.to_string(), var.clone()));
                builder = builder.group(named.collect::<Vec<_>>());
            }
        }
        if let Some(norm) = self.maybe("clip_norm") {
            builder = builder.clip_norm(norm);
        }
        if let Some(value) = self.maybe("clip_value") {
            builder = builder.clip_value(value);
        }
        if self.words.contains_key("init_scale") {
            builder = builder.loss_scale(
                LossScale::fixed(self.number("init_scale"))
                    .growth(self.number("growth_factor"))
                    .backoff(self.number("backoff_factor"))
                    .interval(self.count("growth_interval") as u64),
            );
        }
        if self.name.contains(".master.") {
            builder = builder.master_weights();
        }
        builder.build().unwrap()
    }

    /// Goes through all steps, and returns the largest error.
    fn run<A: Algorithm>(&self, params: A) -> f64 {
        let vars = self.vars();
        let mut optimizer = self.build(&vars, params);
        let mut worst = 0f64;
        for step in 1..=self.count("steps") {
            let before = optimizer.progress().unwrap();
            let one = Tensor::ones((), DType::F32, &Device::Cpu).unwrap();
            optimizer.scale_loss(&one).unwrap();
            optimizer.commit(&self.gradients(step, &vars)).unwrap();
            let progress = optimizer.progress().unwrap();
            for (i, var) in vars.iter().enumerate() {
                worst = worst.max(self.expect(&format!("result/{step}/{i}"), var));
            }

            let norm = self.scalar(&format!("norm/{step}"));
            assert_eq!(norm.is_some(), self.words.contains_key("clip_norm"));
            if let Some(norm) = norm {
                let found = progress.gradient_norm.unwrap();
                let error = (found - norm).abs() / norm;
                assert!(
                    error <= Self::tolerance(vars[0].dtype()),
                    "{} norm {error:e}",
                    self.name
                );
            }
            assert_eq!(progress.loss_scale, self.scalar(&format!("scale/{step}")));
            let skipped = self.scalar(&format!("skipped/{step}")).unwrap_or(0.) as u64;
            assert_eq!(progress.skipped - before.skipped, skipped, "{}", self.name);
            assert_eq!(progress.steps - before.steps, 1 - skipped, "{}", self.name);
            for (i, _) in vars
                .iter()
                .enumerate()
                .filter(|_| self.name.contains(".master."))
            {
                let masters = optimizer.state().unwrap().tensors;
                let master = &masters[&format!("{i}.master")];
                worst = worst.max(self.expect(&format!("master/{step}/{i}"), master));
            }
        }
        worst.max(self.compare_state(&optimizer))
    }

    /// What is kept after the last step. PyTorch has nothing for a parameter that never had a gradient, and counts no steps for Sgd.
    fn compare_state<A: Algorithm>(&self, optimizer: &Fused<A>) -> f64 {
        let mut worst = 0f64;
        let mut compared = 0;
        for (name, tensor) in optimizer.state().unwrap().tensors {
            let (parameter, kept) = name.split_once('.').unwrap();
            let path = format!("state/{kept}/{parameter}");
            match self.maybe_tensor(&path) {
                None => assert!(
                    kept == "step" || kept == "master" || flat(&tensor).iter().all(|v| *v == 0.)
                ),
                Some(table) if kept == "step" => {
                    compared += 1;
                    assert_eq!(flat(&tensor), flat(table), "{} {path}", self.name);
                }
                Some(_) => {
                    compared += 1;
                    worst = worst.max(self.expect(&path, &tensor));
                }
            }
        }
        let prefix = format!("{}/state/", self.name);
        let in_table = self
            .tensors
            .keys()
            .filter(|name| name.starts_with(&prefix))
            .count();
        assert_eq!(compared, in_table, "{}", self.name);
        worst
    }

    fn run_named(&self) -> f64 {
        let number = |key| self.number(key);
        let (lr, weight_decay) = (number("lr"), number("weight_decay"));
        match self.words["optimizer"] {
            "adamw" => self.run(ParamsAdamW {
                lr,
                beta1: number("beta1"),
                beta2: number("beta2"),
                eps: number("eps"),
                weight_decay,
            }),
            "adam" => self.run(ParamsAdam {
                lr,
                beta1: number("beta1"),
                beta2: number("beta2"),
                eps: number("eps"),
                weight_decay,
            }),
            "sgd" => self.run(ParamsSgd {
                lr,
                momentum: number("momentum"),
                dampening: number("dampening"),
                weight_decay,
                nesterov: number("nesterov") != 0.,
            }),
            "lion" => self.run(ParamsLion {
                lr,
                beta1: number("beta1"),
                beta2: number("beta2"),
                weight_decay,
            }),
            other => panic!("{} is of an unknown optimizer {other}", self.name),
        }
    }
}

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/optimizers/tables.safetensors")
}

/// Runs the cases for which `is_chosen` holds; how many there were, and the largest error.
fn run_cases(is_chosen: impl Fn(&Case<'_>) -> bool) -> (usize, f64) {
    let bytes = std::fs::read(path()).unwrap();
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    let metadata = metadata.metadata().clone().unwrap();
    let tensors = candle_core::safetensors::load(path(), &Device::Cpu).unwrap();
    // Schedules have no gradients, and tests of their own.
    let is_run = |name: &str| name != "made_with" && !name.starts_with("schedule.");
    let cases = metadata.iter().filter(|(name, _)| is_run(name));
    let cases = cases.map(|(name, words)| Case::new(name, words, &tensors));
    let (mut count, mut worst) = (0, 0f64);
    for case in cases.filter(|case| is_chosen(case)) {
        count += 1;
        worst = worst.max(case.run_named());
    }
    (count, worst)
}

#[test]
fn every_case_of_the_tables_comes_out_as_with_pytorch() {
    for (dtype, cases) in [("f64", 22), ("f32", 24), ("f16", 2), ("bf16", 2)] {
        let (count, worst) = run_cases(|case| case.words["dtype"] == dtype);
        assert_eq!(count, cases, "{dtype}");
        println!("{dtype}: {count} cases, at most {worst:e} off");
    }
    assert_eq!(run_cases(|_| true).0, 50);
}
