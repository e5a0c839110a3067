//! Each update, bit for bit.

use super::*;

/// 20 updates on 1 to 4 ranks, with pieces of one size and of others, in odd places too if moments are not of 8 bits.
fn same<A: Algorithm>(params: &A, dtype: DType, is_coded: bool, options: Options<'_, A>) {
    for (count, share, unit) in [
        (1, 256, 256),
        (2, 512, 256),
        (3, 768, 256),
        (4, 256, 256),
        (2, 1001, 1),
        (3, 7, 3),
    ] {
        if is_coded && unit != 256 {
            continue;
        }
        let pieces = cut(&SHAPES, count, share, unit);
        let mut ranks = Ranks::new(&Device::Cpu, &SHAPES, dtype, pieces, params, options);
        let start = ranks.whole.bits();
        ranks.run(0..20, &unspoiled);
        let end = ranks.whole.bits();
        assert!(start.iter().zip(&end).all(|(start, end)| start != end));
    }
}

/// Each rule: in f32, in bf16 with masters and with noise, and in 8 bits.
macro_rules! each_form {
    ($($name:ident: $params:expr),+) => {$(
        mod $name {
            use super::*;

            #[test]
            fn full() {
                same(&$params, DType::F32, false, &plain);
                same(&$params, DType::F64, false, &|b| b.clip_value(0.3));
            }

            #[test]
            fn masters() {
                same(&$params, DType::BF16, false, &|b| b.master_weights());
            }

            #[test]
            fn noise() {
                same(&$params, DType::BF16, false, &|b| b.stochastic_rounding().moments(DType::BF16));
            }

            #[test]
            fn eight_bits() {
                let coded = |b: FusedBuilder<_>| b.moments(Moments::EightBit);
                same(&$params, DType::F32, true, &coded);
                same(&$params, DType::BF16, true, &|b| coded(b).stochastic_rounding());
            }
        }
    )+};
}
each_form!(by_adamw: adamw(), by_adam: adam(), by_sgd: sgd(0.9), by_lion: lion());

/// Without state only the parameters are cut.
#[test]
fn sgd_without_momentum_and_with_plain_momentum() {
    same(&sgd(0.), DType::F32, false, &plain);
    let nesterov = false;
    let params = ParamsSgd {
        nesterov,
        ..sgd(0.9)
    };
    same(&params, DType::F32, false, &plain);
}

/// A gradient overflows in one rank's piece: no rank updates, and the scale falls on all alike.
#[test]
fn an_overflow_on_one_rank_is_all_ranks() {
    let scale = LossScale::dynamic().initial(1024.).interval(3);
    let options = |builder: FusedBuilder<ParamsAdamW>| {
        builder.master_weights().loss_scale(scale).clip_norm(1e-3)
    };
    for count in 1..=4 {
        let mut ranks = ranks(count, DType::F16, &adamw(), &options);
        ranks.run(0..24, &|step, index, values| {
            let (parameter, element) = [(0, 4095), (2, 700), (5, 0)][step % 3];
            if step % 5 == 4 && index == parameter {
                values[element] = [f64::INFINITY, f64::NAN][step % 2];
            }
        });
        let progress = ranks.whole.optimizer.progress().unwrap();
        assert_eq!((progress.steps, progress.skipped), (20, 4));
        assert_ne!(progress.loss_scale, Some(1024.));
    }
}

/// The norm of ranks is that of one process up to the order of the sum: f64 sums of 14,000 numbers differ by less than 1e-12 of them.
#[test]
fn clipping_is_that_of_one_process() {
    let options = |builder: FusedBuilder<ParamsAdamW>| builder.clip_norm(0.5);
    for count in 1..=4 {
        let mut ranks = ranks(count, DType::F32, &adamw(), &options);
        ranks.run(0..20, &unspoiled);
        let mut alone = ranks::One::new(&Device::Cpu, &SHAPES, DType::F32, &adamw(), &options);
        for step in 0..20 {
            let gradients = store(alone.vars.iter().enumerate().map(|(index, var)| {
                let gradient = tensor(var.dims(), 100 + 31 * step + index, DType::F32);
                (var.clone(), gradient)
            }));
            alone.optimizer.commit(&gradients).unwrap();
        }
        let norm = |one: &ranks::One<_>| one.optimizer.progress().unwrap().gradient_norm.unwrap();
        let (found, expected) = (norm(&ranks.whole), norm(&alone));
        assert!((found / expected - 1.).abs() < 1e-12, "{found} {expected}");
        let apart = distance(&snapshot(&ranks.whole.vars), &snapshot(&alone.vars));
        assert!(apart < 1e-6, "{apart}");
        if count == 1 {
            // One rank that owns all adds in the same order.
            let pieces = (0..SHAPES.len()).map(|i| (i, 0..ranks::elements(SHAPES[i])));
            let shard = alone.shard(&pieces.collect());
            let gradients = gradients(&alone.vars, 3);
            let measure = alone.optimizer.measure(&gradients, &shard).unwrap();
            alone.optimizer.commit(&gradients).unwrap();
            let squares = measure.unwrap();
            assert_eq!(squares.sqrt().to_bits(), norm(&alone).to_bits());
        }
    }
}

/// Parameters that threads share out, and one without elements.
#[test]
fn large_and_empty_ones() {
    let shapes: [&[usize]; 4] = [&[LARGE], &[0, 3], &[300, 301], &[9]];
    for (count, share, unit) in [(2, 70_144, 256), (3, 33_333, 1)] {
        let pieces = cut(&shapes, count, share, unit);
        let options = |builder: FusedBuilder<ParamsAdamW>| {
            let builder = builder.clip_norm(0.5).moments(DType::BF16);
            match unit {
                256 => builder.moments(Moments::EightBit),
                _ => builder,
            }
        };
        let mut ranks = Ranks::new(
            &Device::Cpu,
            &shapes,
            DType::F32,
            pieces,
            &adamw(),
            &options,
        );
        ranks.run(0..3, &unspoiled);
        assert_eq!(
            contents(&ranks.merged()),
            contents(&ranks.whole.optimizer.state().unwrap())
        );
    }
}

/// A rank's bytes are its part of the whole's, and the sum of all is the whole's.
#[test]
fn a_rank_keeps_its_part_of_the_bytes() {
    let shapes: [&[usize]; 2] = [&[600, 1024], &[1024]];
    type Build = fn(FusedBuilder<ParamsAdamW>) -> FusedBuilder<ParamsAdamW>;
    let forms: [(DType, Build); 4] = [
        (DType::F32, plain),
        (DType::BF16, |builder| builder.master_weights()),
        (DType::F32, |builder| builder.moments(DType::BF16)),
        (DType::F32, |builder| builder.moments(Moments::EightBit)),
    ];
    for (dtype, options) in forms {
        for count in 1..=4usize {
            let pieces = cut(&shapes, count, 1024, 256);
            let ranks = Ranks::new(&Device::Cpu, &shapes, dtype, pieces, &adamw(), &options);
            let whole = ranks.whole.optimizer.state_bytes();
            let parts = ranks.ranks.iter().map(|rank| rank.optimizer.state_bytes());
            let parts: Vec<_> = parts.collect();
            let most = whole as f64 * (1. / count as f64 + 0.01);
            assert!(
                parts.iter().all(|part| (*part as f64) < most),
                "{whole} {parts:?}"
            );
            assert_eq!(parts.iter().sum::<u64>(), whole);
        }
    }
}
