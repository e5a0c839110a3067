//! How samples become batches.

use candle_core::{DType, Device, Tensor};
use candle_headroom::Batch;
use candle_headroom::data::{Loader, Pack, Packed, Pad, stack};
use candle_headroom::error::BoxedError;
use candle_headroom::nn::attention::flash_attn_varlen_unfused;
use candle_headroom::nn::loss::{LinearCrossEntropy, linear_cross_entropy_sum};
use candle_headroom::{AdaptiveTrainer, Sgd};
use candle_nn::{Linear, Module, VarBuilder, VarMap, linear_no_bias};
use proptest::prelude::*;

fn tensor(values: impl candle_core::NdArray) -> Tensor {
    Tensor::new(values, &Device::Cpu).unwrap()
}

fn zeros(shape: impl Into<candle_core::Shape>) -> Tensor {
    Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap()
}

fn text<T>(result: Result<T, BoxedError>) -> String {
    result.err().expect("an error").to_string()
}

#[test]
fn samples_are_stacked_place_by_place() {
    let all = Tensor::arange(0f32, 12., &Device::Cpu)
        .unwrap()
        .reshape((3, 4))
        .unwrap();
    // Views with strides, and numbers without a dimension.
    let columns = (0..4).map(|column| {
        let label = tensor(column as u32);
        (all.narrow(1, column, 1).unwrap().squeeze(1).unwrap(), label)
    });
    let (stacked, labels) = stack(columns.collect()).unwrap();
    assert_eq!(
        stacked.to_vec2::<f32>().unwrap(),
        all.t().unwrap().to_vec2::<f32>().unwrap()
    );
    assert_eq!(labels.to_vec1::<u32>().unwrap(), [0, 1, 2, 3]);
    let [one, two] = [vec![zeros((2, 0))], vec![zeros((2, 0))]];
    assert_eq!(stack(vec![one, two]).unwrap()[0].dims(), [2, 2, 0]);
}

#[test]
fn samples_that_do_not_stack_are_named() {
    let pair = |features: usize, label: Tensor| (zeros((3, features)), label);
    assert_eq!(
        text(stack(vec![
            pair(32, tensor(1u32)),
            pair(32, tensor(1u32)),
            pair(30, tensor(1u32))
        ])),
        "tensor 0 of the sample at place 2 has shape [3, 30], that at place 0 has [3, 32]: crop, resize or pad them"
    );
    assert_eq!(
        text(stack(vec![pair(32, tensor(1u32)), pair(32, tensor(1i64))])),
        "tensor 1 of the sample at place 1 has dtype i64, that at place 0 has u32"
    );
    assert_eq!(
        text(stack(vec![vec![zeros(1)], vec![zeros(1), zeros(1)]])),
        "the sample at place 1 has 2 tensors, that at place 0 has 1"
    );
    assert_eq!(
        text(stack(Vec::<Tensor>::new())),
        "there are no samples to stack"
    );
}

#[test]
fn tensors_are_padded_along_their_first_dimension() {
    let sound = |frames: usize| Tensor::ones((frames, 2), DType::F32, &Device::Cpu).unwrap();
    let strided = Tensor::ones((2, 3), DType::F32, &Device::Cpu)
        .unwrap()
        .t()
        .unwrap();
    let padded = Pad::new(-1f32)
        .multiple_of(4)
        .tensors(vec![sound(1), sound(0), strided])
        .unwrap();
    assert_eq!(padded.values.dims(), [3, 4, 2]);
    assert_eq!(padded.lengths.to_vec1::<u32>().unwrap(), [1, 0, 3]);
    let sums = padded.values.sum((1, 2)).unwrap().to_vec1::<f32>().unwrap();
    // 2 for each frame, -2 for each that is missing.
    assert_eq!(sums, [-4., -8., 4.]);
    let slice = padded.slice(1..3).unwrap();
    assert_eq!(
        slice.mask(DType::F32).unwrap().to_vec2::<f32>().unwrap(),
        [[0.; 4], [1., 1., 1., 0.]]
    );
    assert!(padded.next_tokens(0).is_err());
}

#[test]
fn sequences_that_cannot_be_padded_are_named() {
    let pad = Pad::new(0f32);
    assert_eq!(
        text(pad.tensors(vec![zeros((3, 4)), zeros((5, 6))])),
        "the sequence at place 1 has shape [5, 6], that at place 0 has [3, 4]: only the first dimension may differ"
    );
    assert_eq!(
        text(pad.tensors(vec![zeros(2), tensor(&[1u32])])),
        "the sequence at place 1 has dtype u32, the value to pad with has f32"
    );
    assert!(text(pad.tensors(vec![zeros(())])).contains("place 0 has shape []"));
    assert!(text(pad.tensors(Vec::new())).contains("there are no sequences"));
    let refused = "sequences of up to 2 cannot be padded to a multiple of 0 and at least 0: from 1 to 4294967295 are allowed";
    assert_eq!(text(pad.multiple_of(0).sequences(vec![[1., 2.]])), refused);
    assert!(
        pad.at_least(usize::MAX)
            .multiple_of(8)
            .sequences(vec![[1.]])
            .is_err()
    );
}

fn documents(lengths: &[usize]) -> Vec<Vec<u32>> {
    let mut next = 0;
    let document = |length: &usize| {
        next += length;
        ((next - length) as u32..next as u32).collect()
    };
    lengths.iter().map(document).collect()
}

#[test]
fn documents_that_cannot_be_packed_are_named() {
    assert_eq!(
        text(Pack::new(4).documents(documents(&[3, 5]))),
        "the document at place 1 has 5 tokens, a row has 4: use longer rows, or `Pack::cut`"
    );
    assert_eq!(
        text(Pack::new(4).documents(documents(&[0, 0]))),
        "2 documents without tokens cannot be packed"
    );
    assert_eq!(
        text(Pack::new(0).documents(documents(&[1]))),
        "rows must have from 1 to 4294967295 tokens, got 0"
    );
    assert!(
        Pack::new(usize::MAX)
            .cut()
            .documents(documents(&[1]))
            .is_err()
    );
}

/// Reads all tokens back out of the rows, and checks what is said about each place.
fn unpack(packed: &Packed, ignored: i64, sources: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let tokens = packed.tokens.to_vec2::<u32>().unwrap();
    let positions = packed.positions.to_vec2::<u32>().unwrap();
    let targets = packed.targets.to_vec2::<i64>().unwrap();
    let mut documents: Vec<_> = sources
        .iter()
        .map(|source| vec![None; source.len()])
        .collect();
    let mut starts = Vec::new();
    let mut is_taken: Vec<_> = tokens.iter().map(|row| vec![false; row.len()]).collect();
    for piece in packed.pieces() {
        starts.push((piece.row, piece.start));
        for place in 0..piece.len {
            let (row, at) = (piece.row, piece.start + place);
            assert!(!std::mem::replace(&mut is_taken[row][at], true));
            assert_eq!(positions[row][at] as usize, place);
            let source = &sources[piece.document];
            let next = source.get(piece.offset + place + 1);
            assert_eq!(
                targets[row][at],
                next.map_or(ignored, |next| i64::from(*next))
            );
            let before = documents[piece.document][piece.offset + place].replace(tokens[row][at]);
            assert_eq!(before, None, "twice");
        }
    }
    assert!(starts.is_sorted());
    let rest = is_taken
        .iter()
        .zip(&targets)
        .flat_map(|(taken, targets)| taken.iter().zip(targets));
    assert!(
        rest.filter(|(taken, _)| !**taken)
            .all(|(_, target)| *target == ignored)
    );
    let whole = documents
        .into_iter()
        .map(|document| document.into_iter().collect::<Option<_>>());
    whole
        .collect::<Option<_>>()
        .expect("every token is in a row")
}

proptest! {
    #[test]
    fn every_token_is_packed_once(
        lengths in prop::collection::vec(0_usize..40, 1..30), length in 1_usize..50, cuts: bool, first in 0_usize..30, rows in 0_usize..30,
    ) {
        let sources = documents(&lengths);
        let pack = if cuts { Pack::new(length).cut() } else { Pack::new(length) }.ignore_index(-7).padding(99_999);
        let (total, longest): (usize, _) = (lengths.iter().sum(), lengths.iter().max().unwrap());
        let Ok(packed) = pack.documents(sources.clone()) else {
            prop_assert!(total == 0 || (!cuts && *longest > length));
            return Ok(());
        };
        prop_assert_eq!(&unpack(&packed, -7, &sources), &sources);
        let padding = packed.tokens.eq(99_999u32).unwrap().to_dtype(DType::U32).unwrap();
        let (count, all) = (padding.sum_all().unwrap().to_scalar::<u32>().unwrap() as usize, padding.elem_count());
        prop_assert_eq!(count + total, all);
        // No two rows fit into one.
        let mut filled = vec![0; all / length];
        packed.pieces().iter().for_each(|piece| filled[piece.row] += piece.len);
        filled.sort_unstable();
        prop_assert!(filled.len() < 2 || filled[0] + filled[1] > length);
        let seqlens = packed.seqlens().unwrap().to_vec1::<u32>().unwrap();
        prop_assert_eq!(seqlens.iter().sum::<u32>() as usize, all);
        prop_assert!(!seqlens.contains(&0));

        // A slice of rows is packed too.
        let first = first.min(filled.len());
        let rows = rows.min(filled.len() - first);
        let slice = packed.slice(first..first + rows).unwrap();
        let rest = packed.slice(first + rows..filled.len()).unwrap();
        let before = packed.slice(0..first).unwrap();
        let parts = [before, slice, rest].map(|part| part.seqlens().unwrap().to_vec1::<u32>().unwrap());
        prop_assert_eq!(parts.concat(), seqlens);
    }

    #[test]
    fn every_value_is_padded_once(
        lengths in prop::collection::vec(0_usize..40, 1..20), multiple in 1_usize..20, shortest in 0_usize..60,
    ) {
        let sources = documents(&lengths);
        let padded = Pad::new(99_999u32).multiple_of(multiple).at_least(shortest).sequences(sources.clone()).unwrap();
        let length = padded.values.dim(1).unwrap();
        let longest = shortest.max(*lengths.iter().max().unwrap());
        prop_assert_eq!(length, longest.div_ceil(multiple) * multiple);
        let mask = padded.mask(DType::U8).unwrap().to_vec2::<u8>().unwrap();
        let next = padded.next_tokens(-1).unwrap().to_vec2::<i64>().unwrap();
        for (row, values) in padded.values.to_vec2::<u32>().unwrap().into_iter().enumerate() {
            let (own, padding) = values.split_at(lengths[row]);
            prop_assert_eq!(own, &sources[row]);
            prop_assert!(padding.iter().all(|value| *value == 99_999));
            prop_assert!(mask[row].iter().enumerate().all(|(at, mask)| (*mask == 1) == (at < own.len())));
            let expected = own.iter().skip(1).map(|token| i64::from(*token)).chain(std::iter::repeat(-1));
            prop_assert_eq!(&next[row], &expected.take(length).collect::<Vec<_>>());
        }
        let tensors = sources.iter().map(|source| Tensor::new(source.as_slice(), &Device::Cpu).unwrap());
        let pad = Pad::new(99_999u32).multiple_of(multiple).at_least(shortest);
        let same = pad.tensors(tensors.collect()).unwrap();
        prop_assert_eq!(same.values.to_vec2::<u32>().unwrap(), padded.values.to_vec2::<u32>().unwrap());
    }
}

/// Causal attention with 2 heads, its projections, and the classes of the next token.
struct Layer {
    embeddings: Tensor,
    qkv: Linear,
    out: Linear,
}

const VOCABULARY: usize = 50;

impl Layer {
    fn new(vb: VarBuilder) -> candle_core::Result<Self> {
        Ok(Self {
            embeddings: vb.get((VOCABULARY, 8), "embeddings")?,
            qkv: linear_no_bias(8, 24, vb.pp("qkv"))?,
            out: linear_no_bias(8, 8, vb.pp("out"))?,
        })
    }

    /// Tokens one after the other, [tokens] to [tokens, 8].
    fn forward(
        &self,
        tokens: &Tensor,
        positions: &Tensor,
        seqlens: &Tensor,
    ) -> candle_core::Result<Tensor> {
        let x = self.embeddings.index_select(tokens, 0)?;
        let x = (&x
            + positions
                .to_dtype(DType::F32)?
                .affine(0.1, 0.)?
                .unsqueeze(1)?
                .broadcast_as(x.shape())?)?;
        let qkv = self.qkv.forward(&x)?.reshape(((), 3, 2, 4))?;
        let part = |number| qkv.narrow(1, number, 1)?.squeeze(1);
        let (q, k, v) = (part(0)?, part(1)?, part(2)?);
        let length = tokens.elem_count();
        let attended = flash_attn_varlen_unfused(
            &q, &k, &v, None, seqlens, seqlens, length, length, 0.5, true, None, None,
        )?;
        self.out.forward(&attended.flatten_from(1)?)
    }
}

fn sentences() -> Vec<Vec<u32>> {
    let word = |place: usize| (place * place * 7 % VOCABULARY) as u32;
    let lengths = [9, 16, 3, 1, 12, 7, 5, 2, 11];
    let sentence =
        |(number, length): (usize, &usize)| (number..number + length).map(word).collect();
    lengths.iter().enumerate().map(sentence).collect()
}

#[test]
fn no_token_sees_another_document() {
    let varmap = VarMap::new();
    let layer = Layer::new(VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu)).unwrap();
    let sentences = sentences();
    let packed = Pack::new(16)
        .padding(3)
        .documents(sentences.clone())
        .unwrap();
    assert_eq!(packed.tokens.dims(), [5, 16]);
    let flat = |tensor: &Tensor| tensor.flatten_all().unwrap();
    let outputs = layer
        .forward(
            &flat(&packed.tokens),
            &flat(&packed.positions),
            &packed.seqlens().unwrap(),
        )
        .unwrap();
    for piece in packed.pieces() {
        let tokens = tensor(sentences[piece.document].as_slice());
        let positions = Tensor::arange(0, piece.len as u32, &Device::Cpu).unwrap();
        let alone = layer
            .forward(&tokens, &positions, &tensor(&[piece.len as u32]))
            .unwrap();
        let part = outputs
            .narrow(0, piece.row * 16 + piece.start, piece.len)
            .unwrap();
        let difference = (part - alone).unwrap().abs().unwrap().max_all().unwrap();
        // Outputs are of the size of 1; sums of at most 16 products differ by their order at most.
        assert!(difference.to_scalar::<f32>().unwrap() < 1e-6);
    }
}

/// Packed documents go through loader and trainer, whatever the micro-batch.
#[test]
fn packed_batches_train() {
    let train = |micro_batch: usize| {
        let varmap = VarMap::new();
        let layer = Layer::new(VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu)).unwrap();
        for (number, (_, var)) in
            std::collections::BTreeMap::from_iter(varmap.data().lock().unwrap().iter())
                .into_iter()
                .enumerate()
        {
            let values = Tensor::arange(0f32, var.elem_count() as f32, &Device::Cpu).unwrap();
            let values = (values * (0.3 + number as f64)).unwrap().sin().unwrap();
            var.set(&values.reshape(var.shape()).unwrap()).unwrap();
        }
        let optimizer = Sgd::builder(&varmap).learning_rate(0.1).build().unwrap();
        let policy = candle_headroom::batch::Fixed::new(micro_batch).unwrap();
        let mut trainer = AdaptiveTrainer::builder(optimizer)
            .policy(policy)
            .build()
            .unwrap();
        let pack = Pack::new(16);
        let loader = Loader::builder(sentences(), move |batch| pack.documents(batch))
            .batch(9)
            .build()
            .unwrap();
        let options = LinearCrossEntropy::default().ignore_index(-100);
        let mut losses = Vec::new();
        for batch in loader {
            let report = trainer.step(&batch.unwrap(), |batch, _| {
                let (tokens, positions) =
                    (batch.tokens.flatten_all()?, batch.positions.flatten_all()?);
                let hidden = layer.forward(&tokens, &positions, &batch.seqlens()?)?;
                linear_cross_entropy_sum(
                    &hidden,
                    &layer.embeddings,
                    &batch.targets.flatten_all()?,
                    &options,
                )
            });
            losses.push(report.unwrap().loss);
        }
        let embeddings = layer
            .embeddings
            .flatten_all()
            .unwrap()
            .to_vec1::<f32>()
            .unwrap();
        (losses, embeddings)
    };
    let ((losses, whole), (_, cut)) = (train(5), train(2));
    assert_eq!(losses.len(), 1);
    let differences = whole.iter().zip(&cut).map(|(a, b)| (a - b).abs());
    // The gradients' sums, of the size of 1, are in another order.
    assert!(differences.fold(0f32, f32::max) < 1e-5);
}

/// The sample that does not stack is among the indices of the error.
#[test]
fn a_loader_says_which_samples_do_not_make_a_batch() {
    struct Images;
    impl candle_headroom::data::Dataset for Images {
        type Sample = Tensor;

        fn len(&self) -> usize {
            6
        }

        fn get(&self, index: usize) -> Result<Tensor, BoxedError> {
            Ok(zeros(if index == 4 { 31 } else { 32 }))
        }

        fn name(&self) -> String {
            "images".to_owned()
        }
    }
    let mut loader = Loader::builder(Images, stack).batch(3).build().unwrap();
    assert!(loader.next().unwrap().is_ok());
    assert_eq!(
        loader.next().unwrap().unwrap_err().to_string(),
        "images: samples [3, 4, 5] cannot be made into a batch: tensor 0 of the sample at place 1 has shape [31], \
         that at place 0 has [32]: crop, resize or pad them"
    );
}
