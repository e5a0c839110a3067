//! What all convolutions have: the layer around candle's, and the bias of each channel.

use candle_core::{DType, Result, Tensor, bail};

use crate::graph::{Backward, Gradients, record};
use crate::kernel::{count_in_range, in_range};

/// A layer around candle's of the same name: its parts, candle's layer by `into()`, and the functions that make it, with and without a bias.
macro_rules! layer {
    (
        $(#[$doc:meta])*
        $layer:ident($config:ident, $weight:literal), $($make:ident $with:literal),+
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $layer {
            inner: candle_nn::$layer,
        }

        impl $layer {
            #[doc = concat!("A layer with a weight ", $weight, " and a bias (out).")]
            pub fn new(weight: Tensor, bias: Option<Tensor>, config: candle_nn::$config) -> Self {
                candle_nn::$layer::new(weight, bias, config).into()
            }

            /// Padding, stride and what else the layer was made with.
            pub fn config(&self) -> &candle_nn::$config {
                self.inner.config()
            }

            #[doc = concat!("The weight ", $weight, ".")]
            pub fn weight(&self) -> &Tensor {
                self.inner.weight()
            }

            /// The bias (out).
            pub fn bias(&self) -> Option<&Tensor> {
                self.inner.bias()
            }
        }

        impl From<candle_nn::$layer> for $layer {
            fn from(inner: candle_nn::$layer) -> Self {
                Self { inner }
            }
        }

        $(
            #[doc = concat!(
                "Makes a [`", stringify!($layer), "`] ", $with, " a bias for these numbers of channels and this size of the kernel, with \
                 parameters named and initialized as by [`candle_nn::", stringify!($make), "`].\n\n```\nuse candle_core::{DType, Device};\n",
                "use candle_headroom_nn::{VarBuilder, VarMap, conv::", stringify!($make), "};\n\n",
                "let varmap = VarMap::new();\n",
                "let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);\n",
                "let conv = ", stringify!($make), "(4, 4, 3, Default::default(), vb)?;\n",
                "assert_eq!(conv.weight().dims()[..3], [4, 4, 3]);\n",
                "# Ok::<(), candle_core::Error>(())\n```\n\n# Errors\nThose of the `VarBuilder`."
            )]
            pub fn $make(
                in_channels: usize,
                out_channels: usize,
                kernel_size: usize,
                cfg: candle_nn::$config,
                vb: candle_nn::VarBuilder,
            ) -> Result<$layer> {
                Ok(candle_nn::$make(in_channels, out_channels, kernel_size, cfg, vb)?.into())
            }
        )+
    };
}
pub(super) use layer;

/// Fails if candle's kernels cannot index the input, the output, which has so many positions, or what a convolution without cuDNN makes of the
/// input: a column for each position of the output.
pub fn convolves_in_range(
    name: &'static str,
    x: &Tensor,
    weight: &Tensor,
    positions: usize,
) -> Result<()> {
    in_range(name, [x])?;
    let (channels, positions) = (weight.dim(0)?, x.dim(0)?.saturating_mul(positions));
    let of_column = match cfg!(feature = "cudnn") {
        true => 0,
        false => weight.elem_count() / channels.max(1),
    };
    let elements = positions.saturating_mul(channels.max(of_column));
    count_in_range(name, x.device(), elements)
}

/// Adds the bias of each channel and puts the sum into the graph, which keeps it and not `y`. `gradients` maps input, weight, the
/// output's gradient, and which of the two are asked for, to those of input and weight.
pub fn record_with_bias(
    name: &'static str,
    [x, weight]: [&Tensor; 2],
    bias: Option<&Tensor>,
    y: Tensor,
    gradients: impl Fn(&Tensor, &Tensor, &Tensor, [bool; 2]) -> Result<Gradients<2>>
    + Send
    + Sync
    + 'static,
) -> Result<Tensor> {
    let sum = match bias {
        Some(bias) if bias.dims() != [y.dim(1)?] => bail!(
            "{name}: the bias {:?} is not that of the channels of {:?}",
            bias.shape(),
            y.shape()
        ),
        Some(bias) => {
            let mut of_channels = vec![1; y.rank()];
            of_channels[1] = bias.elem_count();
            y.broadcast_add(&bias.detach().reshape(of_channels)?)?
        }
        None => y.clone(),
    };
    drop(y);
    let none = weight.detach();
    let inputs = [x, weight, bias.unwrap_or(&none)];
    record(name, inputs, sum, move |given: Backward<3>| {
        let ([x, weight, bias], [needs_x, needs_weight, needs_bias]) = (&given.inputs, given.needs);
        let dy = &given.gradient;
        let [dx, dweight] = gradients(x, weight, dy, [needs_x, needs_weight])?;
        let dbias = needs_bias.then(|| {
            let others: Vec<_> = (0..dy.rank()).filter(|&dim| dim != 1).collect();
            let sums = dy.to_dtype(widened(bias.dtype()))?.sum(others)?;
            sums.to_dtype(bias.dtype())
        });
        Ok([dx, dweight, dbias.transpose()?])
    })
}

/// The type that sums are computed in.
pub fn widened(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        dtype => dtype,
    }
}
