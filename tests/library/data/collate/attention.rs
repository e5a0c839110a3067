use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor};
use candle_headroom::batch::Fixed;
use candle_headroom::data::{Items, Loader, Pack};
use candle_headroom::nn::attention::flash_attn_varlen_unfused;
use candle_headroom::nn::loss::{LinearCrossEntropy, linear_cross_entropy_sum};
use candle_headroom::{AdaptiveTrainer, Sgd};
use candle_nn::{Linear, Module, VarBuilder, VarMap, linear_no_bias};

use super::tensor;

/// Causal attention with 2 heads, its projections, and the classes of the next token.
struct Layer {
    embeddings: Tensor,
    qkv: Linear,
    out: Linear,
}

const VOCABULARY: usize = 50;

impl Layer {
    /// In f64, so that rounding hides no token that sees too much. The weights are always the same.
    fn new(varmap: &VarMap) -> candle_core::Result<Self> {
        let vb = VarBuilder::from_varmap(varmap, DType::F64, &Device::Cpu);
        let layer = Self {
            embeddings: vb.get((VOCABULARY, 8), "embeddings")?,
            qkv: linear_no_bias(8, 24, vb.pp("qkv"))?,
            out: linear_no_bias(8, 8, vb.pp("out"))?,
        };
        let vars = varmap.data().lock().unwrap();
        for (number, (_, var)) in BTreeMap::from_iter(vars.iter()).into_iter().enumerate() {
            let values = Tensor::arange(0f64, var.elem_count() as f64, &Device::Cpu)?;
            let values = (values * (0.3 + number as f64))?.sin()?;
            var.set(&values.reshape(var.shape())?)?;
        }
        Ok(layer)
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
                .to_dtype(DType::F64)?
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
    let layer = Layer::new(&VarMap::new()).unwrap();
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
        // Outputs are of the size of 1, and products may be summed in another order.
        assert!(difference.to_scalar::<f64>().unwrap() < 1e-12);
    }

    // Without boundaries tokens do see other documents.
    let mixed = layer
        .forward(
            &flat(&packed.tokens),
            &flat(&packed.positions),
            &tensor(&[80u32]),
        )
        .unwrap();
    let difference = (outputs - mixed).unwrap().abs().unwrap().max_all().unwrap();
    assert!(difference.to_scalar::<f64>().unwrap() > 0.1);
}

/// Packed documents go through loader and trainer, whatever the micro-batch.
#[test]
fn packed_batches_train() {
    let train = |micro_batch: usize| {
        let varmap = VarMap::new();
        let layer = Layer::new(&varmap).unwrap();
        let optimizer = Sgd::builder(&varmap).learning_rate(0.1).build().unwrap();
        let policy = Fixed::new(micro_batch).unwrap();
        let mut trainer = AdaptiveTrainer::builder(optimizer)
            .policy(policy)
            .build()
            .unwrap();
        let pack = Pack::new(16);
        let loader = Loader::builder(Items(sentences()), move |batch| pack.documents(batch))
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
            .to_vec1::<f64>()
            .unwrap();
        (losses, embeddings)
    };
    let ((losses, whole), (_, cut)) = (train(5), train(2));
    assert_eq!(losses.len(), 1);
    let differences = whole.iter().zip(&cut).map(|(a, b)| (a - b).abs());
    // The gradients' sums, of the size of 1, are in another order.
    assert!(differences.fold(0f64, f64::max) < 1e-12);
}
