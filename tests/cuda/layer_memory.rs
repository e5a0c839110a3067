//! `LayerMemory` on a GPU's pool.

use candle_core::{DType, Result, Tensor};
use candle_headroom::layers::{LayerMemory, RowKind};
use candle_headroom::{AdaptiveTrainer, DeviceMemory, Foreign};
use candle_nn::{Linear, Module, Optimizer, SGD, VarBuilder, VarMap, linear};
use tracing::{Span, trace_span};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry;

use crate::gpu::gpu;

/// The simulated pool, as a real one, hands out multiples of 512 bytes.
const ROUNDED: u64 = 64 * 1024;

struct Mlp {
    up: Linear,
    down: Linear,
    span: Span,
    span_up: Span,
}

impl Mlp {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _entered = self.span.enter();
        let hidden = self.span_up.in_scope(|| self.up.forward(x)?.relu())?;
        self.down.forward(&hidden)
    }
}

#[test]
fn layers_hold_what_the_pool_hands_out() {
    let gpu = gpu();
    let memory = DeviceMemory::cuda(gpu.ordinal).open().unwrap();
    let layers = LayerMemory::new(&memory);
    let subscriber = registry().with(layers.layer());
    tracing::subscriber::with_default(subscriber, || {
        let varmap = VarMap::new();
        let vb = VarBuilder::from_varmap(&varmap, DType::F32, memory.device());
        let mlp = Mlp {
            up: linear(64, 512, vb.pp("up")).unwrap(),
            down: linear(512, 64, vb.pp("down")).unwrap(),
            span: trace_span!("mlp"),
            span_up: trace_span!("up"),
        };
        let vars = varmap.all_vars();
        let optimizer = Foreign::new(SGD::new(vars.clone(), 0.1).unwrap(), vars);
        let mut trainer = AdaptiveTrainer::builder(optimizer)
            .memory(&memory)
            .build()
            .unwrap();
        let x = Tensor::ones((1024, 64), DType::F32, memory.device()).unwrap();
        for _ in 0..2 {
            let loss = |x: Tensor, _: &_| mlp.forward(&x)?.sqr()?.mean_all();
            trainer.step(&x, loss).unwrap();
        }
        let report = layers.report();
        println!("{report}");
        let row = |name: &str| report.rows.iter().find(|row| row.name() == name).unwrap();
        // A product, its sum with the bias, and relu.
        let (hidden, out) = (1024 * 512 * 4, 1024 * 64 * 4);
        let near = |bytes: Option<u64>, expected: u64| bytes.unwrap().abs_diff(expected) < ROUNDED;
        let held = |name: &str| row(name).held.map(|bytes| bytes as u64);
        assert!(near(held("mlp.up"), 3 * hidden), "{report}");
        assert!(near(held("mlp"), 3 * hidden + 2 * out), "{report}");
        assert!(near(row("mlp.up").at_peak, 3 * hidden), "{report}");
        assert_eq!(row("parameters").kind, RowKind::Held);
        let sum: u64 = report.rows.iter().filter_map(|row| row.at_peak).sum();
        assert_eq!(Some(sum), report.peak);
    });
}
