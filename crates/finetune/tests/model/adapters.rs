//! Adapters beside a frozen model.

use candle_core::{DType, Device, Result, Tensor};
use candle_headroom::nn::lora::Lora;
use candle_headroom::nn::{VarMap, seeded};
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::compared::{named, whole};
use super::{case, numbers, text};
use headroom_finetune::model::{Base, Config, Decoder, initialize};

const TOKENS: [u32; 8] = [3, 1, 4, 1, 5, 9, 2, 6];

/// A decoder of the family with new adapters, whose `lora_B` is not 0 if `moved`.
fn adapted(lora: &Lora, dtype: DType, moved: bool) -> Result<(Decoder, VarMap)> {
    let (folder, vars) = (case("smollm"), VarMap::new());
    let config = Config::read(&folder).unwrap();
    let base = Base::open(&folder, dtype, &Device::Cpu).unwrap();
    let decoder = Decoder::new(&config, base, Some((lora, &vars)))?;
    initialize(&vars, 0.02, &mut StdRng::seed_from_u64(1)).unwrap();
    for (name, var) in named(&vars) {
        if moved && name.contains("lora_B") {
            var.set(&(var.ones_like()? * 0.1)?)?;
        }
    }
    Ok((decoder, vars))
}

fn lora(targets: &[&str], dropout: f64) -> Lora {
    Lora {
        targets: targets.iter().map(|&target| target.to_owned()).collect(),
        dropout,
        rank: 8,
        alpha: 16.,
        ..Lora::default()
    }
}

#[test]
fn new_adapters_change_nothing_and_only_they_get_gradients() {
    let expected = whole(&case("smollm")).unwrap().decoder;
    let expected = numbers(&expected.forward(&text(&TOKENS)).unwrap());
    let (decoder, vars) = adapted(&lora(&["all-linear"], 0.), DType::F32, false).unwrap();
    let logits = decoder.forward(&text(&TOKENS)).unwrap();
    assert_eq!(numbers(&logits), expected);
    let loss = decoder.loss_sum(&text(&TOKENS), &text(&TOKENS)).unwrap();
    assert_eq!(loss.weight, 8.);
    let gradients = loss.value.backward().unwrap();
    // 2 layers of 7 with two matrices.
    assert_eq!(vars.all_vars().len(), 28);
    assert!(
        vars.all_vars()
            .iter()
            .all(|var| gradients.get(var).is_some())
    );
}

#[test]
fn targets_choose_the_layers() {
    for (targets, expected) in [
        (&["q_proj"][..], 2),
        (&["mlp.up_proj", "k_proj"], 4),
        (&["model.layers.1.self_attn.o_proj"], 1),
        (&["layers.0.mlp.down_proj"], 1),
        (&["layers.*.mlp.down_proj"], 2),
        (&["layers.1.self_attn.*"], 4),
        (&["all-linear"], 14),
    ] {
        let (_, vars) = adapted(&lora(targets, 0.), DType::F32, false).unwrap();
        assert_eq!(vars.all_vars().len(), 2 * expected, "{targets:?}");
    }
    for targets in [
        &["nonsense"][..],
        &["q_proj", "lm_head"],
        &["proj"],
        &["layers.7.mlp.up_proj"],
        &[],
    ] {
        let error = adapted(&lora(targets, 0.), DType::F32, false)
            .err()
            .expect("an error");
        let error = error.to_string();
        let last = targets.last().copied().unwrap_or_default();
        assert!(
            error.contains(last) && error.contains("all-linear"),
            "{error}"
        );
    }
    let error = adapted(&lora(&["q_proj"], 1.), DType::F32, false)
        .err()
        .expect("an error");
    assert!(
        error.to_string().contains("must be in [0, 1), got 1"),
        "{error}"
    );
}

#[test]
fn dropout_repeats_in_recomputed_blocks_and_rests_in_evaluation() {
    let (mut decoder, vars) = adapted(&lora(&["all-linear"], 0.5), DType::F32, true).unwrap();
    let mut run = |seed: u64, marks_blocks: bool| {
        decoder.marks_blocks = marks_blocks;
        seeded(seed, || {
            let loss = decoder.loss_sum(&text(&TOKENS), &text(&TOKENS)).unwrap();
            let gradients = loss.value.backward().unwrap();
            let (_, var) = named(&vars)
                .into_iter()
                .min_by_key(|(name, _)| name.clone())
                .unwrap();
            (
                loss.value.to_scalar::<f32>().unwrap(),
                numbers(gradients.get(&var).unwrap()),
            )
        })
    };
    assert_eq!(run(1, true), run(1, true));
    assert_ne!(run(1, true).0, run(2, true).0);
    let evaluation = || numbers(&decoder.evaluation().forward(&text(&TOKENS)).unwrap());
    assert_eq!(evaluation(), evaluation());
}

#[test]
fn evaluation_follows_the_parameters_and_keeps_no_graph() {
    let (decoder, vars) = adapted(&lora(&["all-linear"], 0.), DType::F32, false).unwrap();
    let evaluation = decoder.evaluation();
    let before = evaluation.forward(&text(&TOKENS)).unwrap();
    assert!(!before.track_op());
    for (_, var) in named(&vars) {
        var.set(&(var.as_tensor() + 0.05).unwrap()).unwrap();
    }
    let after = evaluation.forward(&text(&TOKENS)).unwrap();
    assert_ne!(numbers(&before), numbers(&after));
    assert_eq!(
        numbers(&after),
        numbers(&decoder.forward(&text(&TOKENS)).unwrap())
    );
}

#[test]
fn a_base_of_half_types_takes_adapters_of_f32() {
    let expected = adapted(&lora(&["all-linear"], 0.), DType::F32, true)
        .unwrap()
        .0;
    let expected = numbers(&expected.forward(&text(&TOKENS)).unwrap());
    let largest = expected.iter().fold(0f32, |a, b| a.max(b.abs()));
    for dtype in [DType::BF16, DType::F16] {
        let (decoder, vars) = adapted(&lora(&["all-linear"], 0.), dtype, true).unwrap();
        let logits = decoder.forward(&text(&TOKENS)).unwrap();
        assert_eq!(logits.dtype(), dtype);
        // bf16 has 8 bits: some rounding errors of 1/256 each, of a sum of all.
        for (half, full) in numbers(&logits).iter().zip(&expected) {
            assert!(
                (half - full).abs() < 0.06 * largest,
                "{dtype:?}: {half} {full}"
            );
        }
        let loss = decoder.loss_sum(&text(&TOKENS), &text(&TOKENS)).unwrap();
        let gradients = loss.value.backward().unwrap();
        for var in vars.all_vars() {
            let gradient = gradients.get(&var).unwrap();
            assert_eq!(gradient.dtype(), DType::F32);
            assert!(numbers(gradient).iter().all(|number| number.is_finite()));
        }
    }
}

#[test]
fn tokens_without_weight_do_not_count() {
    let (decoder, _) = adapted(&lora(&["all-linear"], 0.), DType::F32, true).unwrap();
    let loss = |targets: &Tensor| decoder.loss_sum(&text(&TOKENS), targets).unwrap();
    let scalar = |value: &Tensor| value.to_scalar::<f32>().unwrap();
    let last = text(&[u32::MAX, u32::MAX, u32::MAX, 1, 5, 9, 2, 6]);
    let first = [&TOKENS[..3], &[u32::MAX; 5]].concat();
    let minus = last.to_dtype(DType::I64).unwrap();
    let minus = minus
        .ge(16i64)
        .unwrap()
        .where_cond(&(minus.zeros_like().unwrap() - 100.).unwrap(), &minus)
        .unwrap();
    let (all, first) = (loss(&text(&TOKENS)), loss(&text(&first)));
    assert_eq!((all.weight, first.weight), (8., 3.));
    let expected = scalar(&all.value) - scalar(&first.value);
    for found in [loss(&last), loss(&minus)] {
        assert_eq!(found.weight, 5.);
        assert!((scalar(&found.value) - expected).abs() < 1e-4);
    }
}

/// `lora_B` of a new adapter is 0, so DoRA's magnitudes are the norms of the rows, and nothing changes but by rounding.
#[test]
fn magnitudes_begin_as_the_norms_of_rows() {
    let expected = whole(&case("smollm")).unwrap().decoder;
    let expected = numbers(&expected.forward(&text(&TOKENS)).unwrap());
    let dora = Lora {
        dora: true,
        ..lora(&["all-linear"], 0.)
    };
    let (decoder, vars) = adapted(&dora, DType::F32, false).unwrap();
    assert_eq!(vars.all_vars().len(), 42);
    let logits = decoder.forward(&text(&TOKENS)).unwrap();
    for (found, expected) in numbers(&logits).iter().zip(&expected) {
        assert!((found - expected).abs() < 1e-5, "{found} {expected}");
    }
    let loss = decoder.loss_sum(&text(&TOKENS), &text(&TOKENS)).unwrap();
    let gradients = loss.value.backward().unwrap();
    assert!(
        vars.all_vars()
            .iter()
            .all(|var| gradients.get(var).is_some())
    );
    assert!(
        !decoder
            .evaluation()
            .forward(&text(&TOKENS))
            .unwrap()
            .track_op()
    );
}
