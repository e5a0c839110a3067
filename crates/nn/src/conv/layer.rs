/// A layer around candle's of the same name: its parts, candle's layer by `into()`, and the functions that make it, with and without a bias.
macro_rules! layer {
    (
        $(#[$doc:meta])*
        $layer:ident($config:ident, $weight:literal), $with_bias:ident, $without_bias:ident
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

        crate::conv::layer::maker! { $layer, $config, $with_bias, "with" }
        crate::conv::layer::maker! { $layer, $config, $without_bias, "without" }
    };
}
pub(super) use layer;

macro_rules! maker {
    ($layer:ident, $config:ident, $make:ident, $with:literal) => {
        #[doc = concat!(
            "Makes a [`", stringify!($layer), "`] ", $with, " a bias, named and initialized as by [`candle_nn::", stringify!($make), "`].",
            "\n\n# Errors\nThose of the `VarBuilder`."
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
    };
}
pub(super) use maker;
