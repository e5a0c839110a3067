use std::fmt;
use std::sync::Arc;

use tracing::{Subscriber, span};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry;
use tracing_subscriber::registry::LookupSpan;

use super::hooks::measured;
use super::report::LayerReport;
use super::shared::Shared;
use crate::error::{Result, invalid};
use crate::memory::DeviceMemory;
use crate::regions::Surroundings;

/// Finds out which layers of a model hold the memory, from the [`tracing`] spans that the model opens.
///
/// The models of candle-transformers open a span for each layer, so nothing in them changes. A model of your own opens one in each
/// layer's `forward`: `let _entered = tracing::trace_span!("mlp").entered();`, or creates it once with the layer and enters it there.
///
/// For each path of spans it measures the bytes that were allocated and are still held when the span is left (in training, the
/// activations), the highest use, the time, and the number of calls. For the highest use of a step it says who held it: layers,
/// the backward pass, parameters, gradients, optimizer state.
///
/// ```standalone_crate
/// use candle_core::{DType, Device, Result, Tensor};
/// use candle_headroom::layers::LayerMemory;
/// use candle_headroom::{AdamW, AdaptiveTrainer, DeviceMemory, TrackingAllocator};
/// use candle_nn::{Linear, Module, VarBuilder, VarMap, linear};
///
/// #[global_allocator]
/// static ALLOCATOR: TrackingAllocator = TrackingAllocator::system();
///
/// struct Mlp {
///     up: Linear,
///     down: Linear,
///     span: tracing::Span,
/// }
///
/// impl Mlp {
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         let _entered = self.span.enter();
///         self.down.forward(&self.up.forward(x)?.relu()?)
///     }
/// }
///
/// fn main() -> candle_headroom::Result<()> {
///     let memory = DeviceMemory::host().open()?;
///     let layers = LayerMemory::new(&memory);
///     layers.install()?; // before the model is created
///
///     let varmap = VarMap::new();
///     let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
///     let span = tracing::trace_span!("mlp");
///     let mlp = Mlp { up: linear(64, 256, vb.pp("up"))?, down: linear(256, 64, vb.pp("down"))?, span };
///     let optimizer = AdamW::builder(&varmap).learning_rate(1e-3).build()?;
///     let mut trainer = AdaptiveTrainer::builder(optimizer).memory(&memory).build()?;
///     let x = Tensor::randn(0f32, 1., (512, 64), &Device::Cpu)?; // [samples, features]
///     trainer.step(&x, |x, _| mlp.forward(&x)?.sqr()?.mean_all())?;
///
///     let report = layers.report();
///     println!("{report}");
///     let mlp = report.rows.iter().find(|row| row.name() == "mlp").expect("a row");
///     assert!(mlp.held >= Some(512 * (256 + 256 + 64) * 4)); // the three outputs
///     assert!(report.attributed() > Some(0.5)); // not the loss, which no span encloses
///     Ok(())
/// }
/// ```
///
/// # How bytes are attributed
/// Only the use of the whole process is known: on the host from [`TrackingAllocator`](crate::TrackingAllocator), on a GPU from the pool
/// of [`DeviceMemory`]; elsewhere bytes are `None`. What a layer leaves held is exact, if nothing else allocates meanwhile. Who holds
/// what at the peak is exact as long as memory is freed in the opposite order of its allocation, as a graph is: a free is taken from what
/// was allocated last.
///
/// Paths are counted for each thread. What another thread allocates while a span is entered counts to the span, so candle's own threads
/// belong to the layer that they work for, but so does a loader's.
///
/// # Steps
/// A trainer of this crate on the same device says when its micro-batches and phases begin and end. In a loop of your own,
/// [`measure`](Self::measure) does, or else a step is taken to last until the outermost span is entered again.
///
/// A handle is cheap to clone.
#[derive(Clone)]
pub struct LayerMemory {
    shared: Arc<Shared>,
}

impl LayerMemory {
    /// Measures this memory, in place of the `LayerMemory` before: the newest of a process measures, and the reports of others stay as they
    /// are.
    ///
    /// ```
    /// use candle_headroom::DeviceMemory;
    /// use candle_headroom::layers::LayerMemory;
    ///
    /// let layers = LayerMemory::new(&DeviceMemory::host().open()?); // or `DeviceMemory::cuda(0)`
    /// assert!(layers.report().is_empty()); // no span was entered yet
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn new(memory: &DeviceMemory) -> Self {
        let shared = Shared::new(memory.clone());
        Self { shared }
    }

    /// The layer for a subscriber of your own:
    /// `tracing_subscriber::registry().with(layers.layer()).with(…)`. It has to be installed before the model is created, without a filter
    /// that drops spans of the level TRACE.
    ///
    /// Each call gives a layer for one more subscriber.
    ///
    /// ```
    /// use candle_headroom::DeviceMemory;
    /// use candle_headroom::layers::LayerMemory;
    /// use tracing_subscriber::layer::SubscriberExt;
    ///
    /// let layers = LayerMemory::new(&DeviceMemory::host().open()?);
    /// let subscriber = tracing_subscriber::registry().with(layers.layer());
    /// tracing::subscriber::with_default(subscriber, || {
    ///     tracing::trace_span!("mlp").in_scope(|| { /* the layer's forward pass */ });
    /// });
    /// assert_eq!(layers.report().rows[0].name(), "mlp");
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn layer(&self) -> SpanLayer {
        SpanLayer {
            shared: self.shared.clone(),
            number: self.shared.next_layer(),
        }
    }

    /// Makes a subscriber with nothing but this the one of the process.
    ///
    /// ```standalone_crate
    /// use candle_headroom::DeviceMemory;
    /// use candle_headroom::layers::LayerMemory;
    ///
    /// fn main() -> candle_headroom::Result<()> {
    ///     let layers = LayerMemory::new(&DeviceMemory::host().open()?);
    ///     layers.install()?; // before the model is created
    ///     tracing::trace_span!("mlp").in_scope(|| { /* the layer's forward pass */ });
    ///     assert_eq!(layers.report().rows[0].name(), "mlp");
    ///
    ///     assert!(layers.install().unwrap_err().is_layers()); // a process has one subscriber
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// If the process has one already ([`is_layers`](crate::Error::is_layers)): add [`layer`](Self::layer) to that.
    pub fn install(&self) -> Result<()> {
        let installed = tracing::subscriber::set_global_default(registry().with(self.layer()));
        installed.map_err(|_| {
            invalid!(
                Layers,
                "a `tracing` subscriber is installed already: add the layer to it, as in `registry().with(layers.layer()).with(…)`"
            )
        })
    }

    /// Measures a step of a loop of your own: forward pass, backward pass and update.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::DeviceMemory;
    /// use candle_headroom::layers::LayerMemory;
    ///
    /// let layers = LayerMemory::new(&DeviceMemory::host().open()?);
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let gradients = layers.measure(|| w.sqr()?.backward())?; // and the update
    /// assert!(gradients.get(&w).is_some());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn measure<T>(&self, step: impl FnOnce() -> T) -> T {
        let _measured = self.shared.is_active().then(measured);
        // Regions that the step recomputes are told apart.
        Surroundings::default().around(step)
    }

    /// The latest step: of its micro-batches, and the update, the one with the highest use. Empty before a span was entered.
    ///
    /// ```
    /// use candle_headroom::DeviceMemory;
    /// use candle_headroom::layers::LayerMemory;
    /// use tracing_subscriber::layer::SubscriberExt;
    ///
    /// let layers = LayerMemory::new(&DeviceMemory::host().open()?);
    /// let subscriber = tracing_subscriber::registry().with(layers.layer());
    /// tracing::subscriber::with_default(subscriber, || {
    ///     layers.measure(|| {
    ///         for _ in 0..2 {
    ///             tracing::trace_span!("block").in_scope(|| { /* the layer's forward pass */ });
    ///         }
    ///     });
    /// });
    /// let names = layers.report().rows.iter().map(|row| row.name()).collect::<Vec<_>>();
    /// assert!(names.contains(&"block.0".to_owned()) && names.contains(&"block.1".to_owned()));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn report(&self) -> LayerReport {
        let unit = self.shared.on_latest_thread(|tracker| {
            tracker.settle();
            let is_running = tracker.last.is_empty() || tracker.last.is_guessed;
            let unit = match is_running && !tracker.unit.is_empty() {
                true => &tracker.unit,
                false => &tracker.last,
            };
            unit.clone()
        });
        unit.map_or(LayerReport::default(), |unit| LayerReport::of(&unit))
    }
}

impl fmt::Debug for LayerMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = &self.shared.memory;
        f.debug_struct("LayerMemory")
            .field("memory", memory)
            .finish_non_exhaustive()
    }
}

/// A [`Layer`] for one subscriber, made by [`LayerMemory::layer`]. It reads the names of spans and when they are entered, left and closed,
/// and ignores their fields and all events.
///
/// ```
/// use candle_headroom::DeviceMemory;
/// use candle_headroom::layers::{LayerMemory, SpanLayer};
/// use tracing_subscriber::layer::SubscriberExt;
///
/// let layers = LayerMemory::new(&DeviceMemory::host().open()?);
/// let layer: SpanLayer = layers.layer();
/// let subscriber = tracing_subscriber::registry().with(layer);
/// tracing::subscriber::with_default(subscriber, || tracing::trace_span!("mlp").in_scope(|| ()));
/// assert!(!layers.report().is_empty());
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug)]
pub struct SpanLayer {
    shared: Arc<Shared>,
    number: u32,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for SpanLayer {
    fn on_enter(&self, id: &span::Id, context: Context<'_, S>) {
        // A model creates its spans once, so the spans around one that is entered are not its parents in the registry.
        let name = || context.metadata(id).map(|metadata| metadata.name());
        self.shared.enter((self.number, id.into_u64()), name);
    }

    fn on_exit(&self, id: &span::Id, _: Context<'_, S>) {
        self.shared.exit((self.number, id.into_u64()));
    }

    fn on_close(&self, id: span::Id, _: Context<'_, S>) {
        self.shared.close((self.number, id.into_u64()));
    }
}
