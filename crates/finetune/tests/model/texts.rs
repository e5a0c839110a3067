//! Several texts in a sample, and contexts whose perceptron is cut, against each text alone.

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, WithDType};
use candle_headroom::nn::{VarBuilder, VarMap};

use super::compared::{named, whole};
use super::{FAMILIES, case, numbers};
use headroom_finetune::model::{Config, Decoder};

/// Texts of a few tokens, in two samples of the same length.
const SAMPLES: [&[&[u32]]; 2] = [
    &[&[3, 1, 4, 1, 5], &[9, 2], &[6, 5, 3, 5]],
    &[&[8, 9, 7, 9, 3, 2, 3, 8, 4], &[6, 2]],
];

fn rows<T: WithDType>(rows: &[Vec<T>]) -> Tensor {
    let (samples, time) = (rows.len(), rows[0].len());
    let all = Tensor::new(rows.concat(), &Device::Cpu).unwrap();
    all.reshape((samples, time)).unwrap()
}

/// What each token is followed by in its own text.
fn next(text: &[u32]) -> Vec<i64> {
    let next = text[1..].iter().map(|token| i64::from(*token));
    next.chain([-100]).collect()
}

fn number(tensor: &Tensor) -> f64 {
    f64::from(tensor.to_scalar::<f32>().unwrap())
}

#[test]
fn texts_in_a_sample_do_not_see_each_other() {
    for family in FAMILIES {
        let trained = whole(&case(family)).unwrap();
        let decoder = &trained.decoder;
        let tokens = rows(&SAMPLES.map(|sample| sample.concat()));
        let targets = SAMPLES.map(|sample| sample.iter().flat_map(|text| next(text)).collect());
        let starts = SAMPLES.map(|sample| {
            let mut starts: Vec<u8> = Vec::new();
            for text in sample {
                let begins = u8::from(!starts.is_empty());
                starts.extend(std::iter::once(begins).chain(vec![0; text.len() - 1]));
            }
            starts
        });
        let targets = rows(&targets);
        let packed = decoder
            .loss_sum_of_texts(&tokens, &targets, &rows(&starts))
            .unwrap();
        // The sum of the texts alone, with its gradients.
        let (mut alone, mut count) = (Vec::new(), 0.);
        for text in SAMPLES.concat() {
            let (text, next) = (rows(&[text.to_vec()]), rows(&[next(text)]));
            let loss = decoder.loss_sum(&text, &next).unwrap();
            count += loss.weight;
            alone.push(loss.value);
        }
        let alone = Tensor::stack(&alone, 0).unwrap().sum_all().unwrap();
        assert_eq!(packed.weight, count);
        let (found, expected) = (number(&packed.value), number(&alone));
        assert!(
            (found / expected - 1.).abs() < 1e-5,
            "{family}: {found}, not {expected}"
        );
        // Else nothing would be tested.
        let joined = number(&decoder.loss_sum(&tokens, &targets).unwrap().value);
        assert!((joined / expected - 1.).abs() > 1e-4, "{family}: {joined}");
        same_gradients(family, &trained.vars, &packed.value, &alone);
    }
}

fn same_gradients(what: &str, vars: &VarMap, found: &Tensor, expected: &Tensor) {
    let (found, expected) = (found.backward().unwrap(), expected.backward().unwrap());
    for (name, var) in named(vars) {
        let gradient = |of: &GradStore| numbers(of.get(&var).unwrap());
        let (found, expected) = (gradient(&found), gradient(&expected));
        let largest = expected
            .iter()
            .fold(1e-6, |most: f32, value| most.max(value.abs()));
        let off = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
        let off = off.fold(0., f32::max) / largest;
        assert!(off < 1e-4, "{what}: {name} is off by {off}");
    }
}

/// A sample of 400 tokens, whose inner activations of 65,536 f32 take 100 MiB, against its two halves alone, which are not cut.
#[test]
fn a_long_context_is_cut_in_the_perceptron() {
    const HALF: usize = 200;
    let config = Config {
        vocab_size: 16,
        hidden_size: 8,
        intermediate_size: 1 << 16,
        num_hidden_layers: 1,
        num_attention_heads: 2,
        num_key_value_heads: 1,
        head_dim: 4,
        max_position_embeddings: 2 * HALF,
        ..Config::default()
    };
    let vars = VarMap::new();
    let base = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    let decoder = Decoder::new(&config, base, None).unwrap();
    let text = |first: u32| {
        (0..HALF as u32)
            .map(|at| (at * 7 + first) % 11)
            .collect::<Vec<_>>()
    };
    let texts = [text(1), text(5)];
    let mut starts = vec![0u8; 2 * HALF];
    starts[HALF] = 1;
    let targets = rows(&[texts.each_ref().map(|text| next(text)).concat()]);
    let whole = decoder.loss_sum_of_texts(&rows(&[texts.concat()]), &targets, &rows(&[starts]));
    let whole = whole.unwrap().value;
    let alone = texts.map(|text| {
        let targets = rows(&[next(&text)]);
        decoder.loss_sum(&rows(&[text]), &targets).unwrap().value
    });
    let alone = (&alone[0] + &alone[1]).unwrap();
    assert!((number(&whole) / number(&alone) - 1.).abs() < 1e-5);
    same_gradients("a long context", &vars, &whole, &alone);
}
