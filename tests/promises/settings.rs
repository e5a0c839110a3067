//! Promise 10, no panic: every builder, with settings at random, makes something that works, or an error that says why not.

use std::cell::Cell;
use std::fmt::Display;
use std::time::Duration;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::{
    BatchPolicy, Completed, Extent, Fixed, Halving, MemoryModel, Samples, process_batches,
};
use candle_headroom::checkpoint::Checkpoints;
use candle_headroom::data::{
    Check, Dataset, Items, Loader, Pack, Pad, TokenType, TokenWindow, Tokens, TokensBuilder, check,
};
use candle_headroom::distributed::Group;
use candle_headroom::environment::Requirement;
use candle_headroom::error::BoxedError;
use candle_headroom::incident::IncidentLog;
use candle_headroom::monitor::FileSink;
use candle_headroom::nn::{Attention, attention, ops};
use candle_headroom::optim::{
    Adam, Commit, Ema, FusedBuilder, LearningRate, Lion, LossScale, ParamsAdamW, ParamsSgd,
};
use candle_headroom::{
    AccumulatingTrainer, AdamW, AdaptiveTrainer, ByteSize, GradientAccumulator, Predictive, Sgd,
};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::RngSeed;

use crate::support::{Mlp, sgd};

/// Numbers that a setting may have, most of them bad.
fn number() -> impl Strategy<Value = f64> {
    let usual = [0., 0.1, 0.5, 0.9, 1., 2., 65_536.];
    let odd = [
        -0.,
        -1.,
        1e-320,
        1e308,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
    ];
    prop_oneof![
        3 => select(usual.to_vec()),
        1 => select(odd.to_vec()),
        1 => prop::num::f64::ANY,
    ]
}

fn count() -> impl Strategy<Value = usize> {
    prop_oneof![
        3 => 0usize..20,
        1 => select(vec![1 << 20, 1 << 40, usize::MAX / 2, usize::MAX]),
    ]
}

fn time() -> impl Strategy<Value = Duration> {
    let times = [
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_secs(3600),
        Duration::MAX,
    ];
    select(times.to_vec())
}

/// What was made, or nothing with an error that has a text.
fn made<T, E: Display>(built: Result<T, E>) -> Option<T> {
    built
        .map_err(|error| assert!(!error.to_string().is_empty()))
        .ok()
}

/// Makes an update with a gradient of ones, and counts what it may allocate.
fn update(mut optimizer: impl Commit, var: &Var) {
    let mut gradients = GradStore::default();
    gradients.insert(var, Tensor::ones(3, DType::F32, &Device::Cpu).unwrap());
    for _ in 0..2 {
        made(optimizer.commit(&gradients));
    }
    made(optimizer.state());
}

/// The options that all optimizers have.
fn options<A: candle_headroom::optim::Algorithm>(
    builder: FusedBuilder<A>,
    [rate, decay, norm, value]: [f64; 4],
    on: u8,
) -> FusedBuilder<A> {
    let mut builder = builder.learning_rate(rate);
    builder = if on & 1 > 0 {
        builder.weight_decay(decay)
    } else {
        builder
    };
    builder = if on & 2 > 0 {
        builder.clip_norm(norm)
    } else {
        builder
    };
    builder = if on & 4 > 0 {
        builder.clip_value(value)
    } else {
        builder
    };
    builder = if on & 8 > 0 {
        builder.skip_non_finite()
    } else {
        builder
    };
    builder = if on & 16 > 0 {
        builder.moments(DType::BF16)
    } else {
        builder
    };
    if on & 32 > 0 {
        builder.moments_on_host(value)
    } else {
        builder
    }
}

/// The same 128 cases in each run; with `PROPTEST_CASES` as many, and others.
fn config() -> ProptestConfig {
    let more = std::env::var_os("PROPTEST_CASES").map(|_| ProptestConfig::default().cases);
    ProptestConfig {
        failure_persistence: None,
        rng_seed: more.map_or(RngSeed::Fixed(28), |_| RngSeed::Random),
        ..ProptestConfig::with_cases(more.unwrap_or(128))
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn optimizers(
        numbers in [number(), number(), number(), number()],
        more in [number(), number(), number(), number()],
        interval in any::<u64>(),
        on in any::<u8>(),
    ) {
        let var = Var::ones(3, DType::F32, &Device::Cpu).unwrap();
        let vars = || vec![var.clone()];
        let [lr, beta1, beta2, eps] = more;
        let params = ParamsAdamW { lr, beta1, beta2, eps, ..ParamsAdamW::default() };
        for optimizer in [
            made(options(AdamW::builder(vars()).params(params), numbers, on).build()),
            made(options(AdamW::builder(vars()), numbers, on).build()),
        ] {
            optimizer.into_iter().for_each(|optimizer| update(optimizer, &var));
        }
        if let Some(optimizer) = made(options(Adam::builder(vars()), numbers, on).build()) {
            made(Ema::new(optimizer, beta1)).into_iter().for_each(|it| update(it, &var));
        }
        if let Some(optimizer) = made(options(Lion::builder(vars()), numbers, on).build()) {
            update(optimizer, &var);
        }
        let scale = LossScale::fixed(lr).growth(beta1).backoff(beta2).interval(interval);
        let params = ParamsSgd { lr, momentum: beta1, ..ParamsSgd::default() };
        let builder = Sgd::builder(vars()).params(params).loss_scale(scale);
        if let Some(optimizer) = made(builder.build()) {
            made(optimizer.scale_loss(&Tensor::ones((), DType::F32, &Device::Cpu).unwrap()));
            update(optimizer, &var);
        }
    }

    #[test]
    fn schedules(
        peak in number(),
        [floor, factor] in [number(), number()],
        [steps, warm_up, at] in any::<[u64; 3]>(),
        small in any::<bool>(),
    ) {
        let (steps, warm_up) = if small { (steps % 9, warm_up % 9) } else { (steps, warm_up) };
        let builder = || LearningRate::builder(peak).floor(floor).warm_up(warm_up);
        for built in [
            builder().build(),
            builder().cosine(steps).build(),
            builder().linear(steps).build(),
            builder().steps(steps, factor).build(),
        ] {
            let Some(schedule) = made(built) else { continue };
            for step in [0, 1, warm_up, steps, at, u64::MAX] {
                prop_assert!(schedule.at(step) >= 0., "{schedule:?} at {step}");
            }
        }
    }

    #[test]
    fn policies(margin in number(), [start, most, size, samples] in [count(), count(), count(), count()]) {
        let predictive = Predictive::builder().margin(margin).at_most(most).build();
        let halving = Halving::builder().start(start).at_most(most).build();
        let policies: [Option<Box<dyn BatchPolicy>>; 3] = [
            made(predictive).map(|policy| Box::new(policy) as _),
            made(halving).map(|policy| Box::new(policy) as _),
            made(Fixed::new(size)).map(|policy| Box::new(policy) as _),
        ];
        let samples = samples.max(1);
        for mut policy in policies.into_iter().flatten() {
            policy.begin(&Extent::new(samples, most));
            for peak in [0, 1 << 20, u64::MAX] {
                let mut completed = Completed::new(policy.size(samples).clamp(1, samples));
                (completed.before, completed.peak) = (Some(0), Some(peak));
                completed.limit = Some(most as u64);
                policy.succeeded(&completed);
            }
            policy.plan();
        }
        let mut model = MemoryModel::new();
        for (cost, bytes) in [(size, start), (most, most), (start, samples)] {
            model.observe(cost.max(1), bytes as u64);
        }
        prop_assert!(model.predict(samples) <= model.upper_bound(samples));
    }

    #[test]
    fn trainers(
        [reach, every, batches] in [count(), count(), count()],
        name in "[a-z.*]{0,6}",
        seed in any::<u64>(),
    ) {
        let model = Mlp::new(DType::F32);
        let optimizer = || sgd(&model.vars, 1e-3);
        let (x, y) = Mlp::data(4, DType::F32);
        let builder = AdaptiveTrainer::builder(optimizer()).compare_every(every as u64).seed(seed);
        let builder = builder.reach_within(reach).allow_unreached([name.clone()]);
        if let Some(mut trainer) = made(builder.build()) {
            made(trainer.step(&(&x, &y), |(x, y), _| model.loss(&x, &y)));
        }
        let builder = AccumulatingTrainer::builder(optimizer(), batches);
        if let Some(mut trainer) = made(builder.build()) {
            made(trainer.step(&(&x, &y), |(x, y), _| model.loss(&x, &y)));
            made(trainer.update());
        }
        let builder = GradientAccumulator::builder(optimizer()).allow_unreached([name]);
        if let Some(mut accumulator) = made(builder.reach_within(reach).build()) {
            made(accumulator.add(model.loss(&x, &y).unwrap(), batches));
            made(accumulator.update());
        }
        let done = Cell::new(0);
        made(process_batches(&Samples(&[1, 2, 3]), batches, |chunk| {
            done.set(done.get() + chunk.len());
            Ok(())
        }));
        prop_assert!(done.get() == 3 || batches == 0);
    }

    #[test]
    fn loaders(
        [batch, ahead, retries, skips] in [count(), count(), count(), count()],
        (workers, bytes) in (0usize..4, count()),
        [seed, epochs] in any::<[u64; 2]>(),
        name in "[a\0]{0,2}",
        range in (any::<i64>(), any::<i64>()),
    ) {
        let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> {
            Ok(Tensor::new(samples, &Device::Cpu)?)
        };
        let check_of = Check::new("numbers").dtype(DType::U32).shape([None]).range(range.0..range.1);
        made(check(&Tensor::arange(0u32, 5, &Device::Cpu).unwrap(), std::slice::from_ref(&check_of)));
        let builder = Loader::builder(Items(Vec::from_iter(0u32..30)), collate);
        let builder = builder.batch(batch).ahead(ahead).retries(retries).skip_failures(skips);
        let builder = builder.workers(workers).ahead_bytes(ByteSize(bytes as u64)).shuffle(seed);
        let builder = builder.epochs(epochs).name(name).check(check_of);
        if let Some(loader) = made(builder.build()) {
            loader.take(4).for_each(|batch| drop(made(batch)));
        }
    }

    #[test]
    fn tokens_and_rows_of_them(
        [window, stride, header, length] in [count(), count(), count(), count()],
        end in any::<u32>(),
        on in any::<u8>(),
    ) {
        const MOST: usize = 1 << 16;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, [7, 8, 9, 0, 5, 0, 6, 6]).unwrap();
        let options = |mut builder: TokensBuilder| {
            builder = if on & 1 > 0 { builder.window(window) } else { builder };
            builder = if on & 2 > 0 { builder.stride(stride) } else { builder };
            builder = if on & 4 > 0 { builder.skip_header(header) } else { builder };
            builder = if on & 8 > 0 { builder.dtype(TokenType::U8) } else { builder };
            if on & 16 > 0 { builder.documents(end % 9) } else { builder }
        };
        for builder in [Tokens::builder([file.path()]), Tokens::from_vec(vec![1, 2, 0, 4, 5])] {
            let Some(tokens) = made(options(builder).open()) else { continue };
            for index in 0..tokens.len().min(9) {
                made(tokens.get(index).unwrap().to_vec());
            }
            let windows = (0..tokens.len().min(9)).map(|index| tokens.get(index).unwrap());
            let documents: Result<Vec<_>, _> = windows.map(|it: TokenWindow| it.to_vec()).collect();
            // Not a length that takes seconds to fill; the larger ones are refused.
            let length = if length == 1 << 20 { MOST } else { length };
            made(Pack::new(length).padding(end).documents(documents.unwrap()));
        }
        // Lengths that there is memory for; others are refused by the system's allocator, or not.
        let pad = Pad::new(end).multiple_of(stride % MOST).at_least(length % MOST);
        made(pad.sequences(vec![vec![1u32, 2], vec![]]));
    }

    #[test]
    fn files(
        [updates, last, size] in [count(), count(), count()],
        every in time(),
        metric in "[ -~]{0,3}",
        on in any::<u8>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let mut builder = Checkpoints::builder(path("run")).in_foreground();
        builder = if on & 1 > 0 { builder.every_updates(updates as u64) } else { builder };
        builder = if on & 2 > 0 { builder.every_duration(every) } else { builder };
        builder = if on & 4 > 0 { builder.keep_last(last) } else { builder };
        builder = if on & 8 > 0 { builder.lowest(metric) } else { builder };
        builder = if on & 16 > 0 { builder.shard_size(ByteSize(size as u64)) } else { builder };
        made(builder.open());
        let size = ByteSize(size as u64);
        made(FileSink::json_lines(path("a.jsonl")).rotate_at(size).open());
        made(IncidentLog::builder(path("log.jsonl")).rotate_at(size).open());
    }

    /// The variables of launchers, which another program may have set to anything. None of them makes more than one rank.
    #[test]
    fn variables_of_launchers(
        values in prop::collection::vec(select(vec!["", "0", "0", "-1", "x", "18446744073709551616", "\u{7f}"]), 12),
        sizes in prop::collection::vec(select(vec!["", "0", "1", "1", "-1", "x", "1048577", "18446744073709551615"]), 4),
        [address, has_agent] in any::<[bool; 2]>(),
        timeout in time(),
    ) {
        let names = [
            "RANK", "LOCAL_RANK", "MASTER_PORT", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK", "MPI_LOCALRANKID",
            "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID", "HEADROOM_SECRET",
        ];
        let of_size = ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"];
        let variables = names.into_iter().zip(values).chain(of_size.into_iter().zip(sizes));
        let more = [("MASTER_ADDR", address, "127.0.0.1"), ("TORCHELASTIC_USE_AGENT_STORE", has_agent, "True")];
        let more = more.into_iter().filter(|(_, is_set, _)| *is_set);
        let variables = variables.chain(more.map(|(name, _, value)| (name, value)));
        let group = Group::builder().timeout(timeout).variables(variables).open();
        made(group).into_iter().for_each(|group| assert_eq!(group.size(), 1));
    }

    #[test]
    fn requirements(text in "(cpu|cuda|ranks|mem|=|,|8|GiB|GPU| |-|\\.|[ -~]){0,8}") {
        if let Some(requirement) = made(text.parse::<Requirement>()) {
            prop_assert!(!requirement.to_string().is_empty());
        }
    }

    #[test]
    fn attention_and_dropout(
        numbers in [number(), number(), number()],
        [offset, left, right, key] in [count(), count(), count(), count()],
        on in any::<u8>(),
    ) {
        let [scale, cap, rate] = numbers;
        let ones = |heads: usize, len: usize| Tensor::ones((1, heads, len, 4), DType::F32, &Device::Cpu).unwrap();
        let mut options = Attention::default();
        options = if on & 1 > 0 { options.causal_from(offset) } else { options };
        options = if on & 2 > 0 { options.window(left, right) } else { options };
        options = if on & 4 > 0 { options.lengths(&[left], &[key]) } else { options };
        options = if on & 8 > 0 { options.scale(scale) } else { options };
        options = if on & 16 > 0 { options.softcap(cap) } else { options };
        options = if on & 32 > 0 { options.dropout(rate) } else { options };
        let (q, k) = (ones(2, 3), ones(1, 5));
        if let Some(output) = made(attention(&q, &k, &k, &options)) {
            prop_assert_eq!(output.dims(), q.dims());
        }
        made(ops::dropout(&q, rate as f32));
    }
}
