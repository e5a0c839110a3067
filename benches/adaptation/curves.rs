//! Simulated devices: the memory that a micro-batch takes on them, and the memory that they have.

/// Bytes of one sample. Sizes below are given in samples.
pub const SAMPLE: f64 = 32. * 1024. * 1024.;

/// The memory that micro-batches take, and how much there is in each step.
#[derive(Clone, Debug)]
pub struct Curve {
    pub name: &'static str,
    /// Samples in each step.
    pub batch: usize,
    /// What a micro-batch takes besides its samples, in samples.
    pub base: f64,
    /// The least that a micro-batch takes, in samples, for example gradients that peak before the activations do.
    pub flat: f64,
    /// What the first micro-batch allocates permanently, in samples.
    pub once: f64,
    /// Each peak lies at most this fraction above or below the curve.
    pub noise: f64,
    /// Peaks are rounded up to whole multiples of this, in samples.
    pub rounding: f64,
    /// Number of samples from which a workspace is used, and its size in samples.
    pub workspace: Option<(usize, f64)>,
    /// From each step on, the number of samples for which there is room besides base and workspace.
    pub rooms: Vec<(usize, usize)>,
    /// Whether memory is not measured.
    pub is_blind: bool,
    /// Lengths of the samples in each step in turn, relative to the first batch.
    pub lengths: Vec<f64>,
}

impl Curve {
    /// A straight line and constant room.
    pub fn affine(batch: usize, room: usize) -> Self {
        Self {
            name: "affine",
            batch,
            base: 20.,
            flat: 0.,
            once: 0.,
            noise: 0.,
            rounding: 0.,
            workspace: None,
            rooms: vec![(0, room)],
            lengths: vec![1.],
            is_blind: false,
        }
    }
}

/// A device during a run.
#[derive(Clone, Debug)]
pub struct Device {
    pub curve: Curve,
    pub step: usize,
    /// Steps that were discarded; the room changes with time all the same.
    pub lost: usize,
    pub in_use: f64,
    seed: u64,
}

impl Device {
    pub fn new(curve: &Curve, seed: u64) -> Self {
        Self {
            curve: curve.clone(),
            step: 0,
            lost: 0,
            in_use: 0.,
            seed,
        }
    }

    /// Number of samples of the present step's length that fit whatever the noise.
    pub fn room(&self) -> usize {
        let limit = self.limit();
        let fits = |size: usize| self.smooth(size) * (1. + self.curve.noise) <= limit - self.once();
        (1..=self.curve.batch * 64)
            .take_while(|size| fits(*size))
            .last()
            .unwrap_or(0)
    }

    fn once(&self) -> f64 {
        self.curve.once * SAMPLE
    }

    /// All the memory there is, in bytes.
    pub fn limit(&self) -> f64 {
        let mut rooms = self.curve.rooms.iter().rev();
        let room = rooms.find(|(from, _)| *from <= self.step + self.lost);
        let room = room
            .map_or(0., |(_, room)| *room as f64)
            .max(self.curve.flat);
        let workspace = self.curve.workspace.map_or(0., |(_, samples)| samples);
        let samples = (room + self.curve.base + workspace) * (1. + self.curve.noise);
        (samples + self.curve.once + self.curve.rounding) * SAMPLE
    }

    pub fn length(&self) -> f64 {
        let lengths = &self.curve.lengths;
        lengths[self.step % lengths.len()]
    }

    /// Bytes that a micro-batch takes above what is in use, without noise.
    fn smooth(&self, size: usize) -> f64 {
        let curve = &self.curve;
        let mut samples = curve.base + (size as f64 * self.length()).max(curve.flat);
        if let Some((from, workspace)) = curve.workspace
            && size >= from
        {
            samples += workspace;
        }
        match curve.rounding > 0. {
            true => (samples / curve.rounding).ceil() * curve.rounding * SAMPLE,
            false => samples * SAMPLE,
        }
    }

    /// Runs a micro-batch; returns its peak in bytes, or `None` if that is more than there is.
    pub fn run(&mut self, size: usize) -> Option<u64> {
        let sway = self.random() * 2. - 1.;
        let own = self.smooth(size) * (1. + self.curve.noise * sway);
        let once = (self.once() - self.in_use).max(0.);
        let peak = self.in_use + once + own;
        if peak > self.limit() {
            return None;
        }
        self.in_use += once;
        Some(peak as u64)
    }

    /// A number from 0 to 1 (Knuth's multiplier), the same in each run.
    fn random(&mut self) -> f64 {
        self.seed = (self.seed)
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.seed >> 33) as f64 / (1u64 << 31) as f64
    }
}
