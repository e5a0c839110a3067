use candle_core::{Result, Tensor};
use candle_headroom::nn::{Init, Linear, Module, init, ops};

use super::place::Place;
use super::view::View;

/// A linear layer, perhaps with an adapter.
#[derive(Clone)]
pub struct Projection {
    base: Linear,
    adapter: Option<Adapter>,
}

#[derive(Clone)]
struct Adapter {
    /// (rank, inputs)
    a: Tensor,
    /// (outputs, rank)
    b: Tensor,
    scale: f64,
    dropout: f32,
}

impl Projection {
    pub fn new(inputs: usize, outputs: usize, has_bias: bool, place: &Place) -> Result<Self> {
        let weight =
            place
                .base
                .get_with_hints((outputs, inputs), "weight", init::DEFAULT_KAIMING_NORMAL)?;
        let bias = || place.base.get_with_hints(outputs, "bias", Init::Const(0.));
        let bias = has_bias.then(bias).transpose()?;
        let adapter = place.adapter().map(|(lora, vb)| {
            let up = 1. / (inputs as f64).sqrt();
            let uniform = Init::Uniform { lo: -up, up };
            Result::Ok(Adapter {
                a: vb
                    .pp("lora_A")
                    .get_with_hints((lora.rank, inputs), "weight", uniform)?,
                b: vb.pp("lora_B").get_with_hints(
                    (outputs, lora.rank),
                    "weight",
                    Init::Const(0.),
                )?,
                scale: lora.scale(),
                dropout: lora.dropout as f32,
            })
        });
        Ok(Self {
            base: Linear::new(weight, bias),
            adapter: adapter.transpose()?,
        })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.base.forward(x)?;
        match &self.adapter {
            None => Ok(y),
            Some(adapter) => ops::add(&y, &adapter.forward(x)?.to_dtype(x.dtype())?),
        }
    }
}

impl Adapter {
    /// In the adapter's own type.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = ops::dropout(&x.to_dtype(self.a.dtype())?, self.dropout)?;
        let inner = Linear::new(self.a.clone(), None).forward(&x)?;
        Linear::new(self.b.clone(), None).forward(&(inner * self.scale)?)
    }
}

impl View for Projection {
    fn without_graph(&self) -> Self {
        let bias = self.base.bias().map(Tensor::detach);
        Self {
            base: Linear::new(self.base.weight().detach(), bias),
            adapter: self.adapter.as_ref().map(|adapter| Adapter {
                a: adapter.a.detach(),
                b: adapter.b.detach(),
                scale: adapter.scale,
                dropout: 0.,
            }),
        }
    }
}
