//! Before NCCL is opened, all ranks tell each other whether they can use it. Where one cannot, all do without and know why; different versions of the
//! library, and one GPU for two ranks, are errors.

use std::sync::Arc;

use candle_core::Device;
use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaStream};
use serde::{Deserialize, Serialize};

use super::library::{Library, UniqueId};
use crate::distributed::control::Control;
use crate::error::{GroupError, Result};
use crate::host;

/// The handle of each thread's own default stream.
const PER_THREAD: usize = 2;

/// What a rank tells the others.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Offer {
    /// Why this rank cannot use NCCL.
    problem: Option<String>,
    version: String,
    machine: String,
    gpu: String,
    /// From rank 0.
    id: Vec<u8>,
}

/// NCCL on this rank, and what is needed to join the others.
pub(super) struct Met {
    pub(super) library: Arc<Library>,
    pub(super) context: Arc<CudaContext>,
    pub(super) id: UniqueId,
}

/// Tells all ranks whether each can use NCCL, and on which GPU; otherwise why one of them cannot.
pub(super) fn meet(device: &Device, control: &Arc<Control>) -> Result<Result<Met, String>> {
    let is_first = control.rank() == 0;
    let prepared = prepare(device, is_first);
    let offer = match &prepared {
        Ok((_, _, offer)) => serde_json::to_vec(offer),
        Err(problem) => serde_json::to_vec(&Offer {
            problem: Some(problem.clone()),
            ..Offer::default()
        }),
    };
    let offer = offer.map_err(candle_core::Error::wrap)?;
    let offers = control.gather("open NCCL", &offer)?;
    let offers = offers.iter().map(|offer| serde_json::from_slice(offer));
    let offers: Vec<Offer> = offers
        .collect::<Result<_, _>>()
        .map_err(candle_core::Error::wrap)?;
    let problems = offers.iter().enumerate();
    let problems = problems.filter_map(|(rank, offer)| Some((rank, offer.problem.as_ref()?)));
    if let Some((rank, problem)) = problems.into_iter().next() {
        return Ok(Err(format!("on rank {rank}, {problem}")));
    }
    check(&offers)?;
    let id = offers
        .first()
        .and_then(|offer| offer.id.as_slice().try_into().ok());
    Ok(match (prepared, id) {
        (Ok((library, context, _)), Some(id)) => Ok(Met {
            library: Arc::new(library),
            context,
            id: UniqueId(id),
        }),
        _ => Err("rank 0 has sent no name of a communicator".to_owned()),
    })
}

fn prepare(device: &Device, is_first: bool) -> Result<(Library, Arc<CudaContext>, Offer), String> {
    let Device::Cuda(cuda) = device else {
        return Err("the device is not a GPU".to_owned());
    };
    let stream = cuda.cuda_stream();
    check_stream(&stream)?;
    let context = stream.context();
    let uuid = context
        .uuid()
        .map_err(|error| format!("the GPU has no UUID: {error:?}"))?;
    let library = Library::load()?;
    let id = match is_first {
        true => library.unique_id()?.0.to_vec(),
        false => Vec::new(),
    };
    let hex = |byte: &_| format!("{:02x}", *byte as u8);
    let offer = Offer {
        problem: None,
        version: library.version.clone(),
        machine: machine(),
        gpu: format!("GPU-{}", uuid.bytes.iter().map(hex).collect::<String>()),
        id,
    };
    Ok((library, context.clone(), offer))
}

/// NCCL may launch work from another thread, for which a thread's own stream is another stream.
pub(super) fn check_stream(stream: &CudaStream) -> Result<(), String> {
    match stream.cu_stream().addr() {
        PER_THREAD => Err(
            "the device is used through each thread's own stream, on which NCCL's work has no order: open it with `DeviceMemory::cuda` or \
             `Device::new_cuda_with_stream`"
                .to_owned(),
        ),
        _ => Ok(()),
    }
}

/// A name that no other running machine has; the containers of one machine share it.
fn machine() -> String {
    Some(host::boot())
        .filter(|id| !id.is_empty())
        .unwrap_or_else(host::name)
}

fn check(offers: &[Offer]) -> Result<(), GroupError> {
    let Some(first) = offers.first() else {
        return Ok(());
    };
    let others = offers.iter().enumerate();
    let others = others.filter(|(_, offer)| offer.version != first.version);
    let differences: Vec<_> = others
        .map(|(rank, offer)| {
            let (own, version) = (&first.version, &offer.version);
            format!("rank 0 has NCCL {own}, rank {rank} {version}")
        })
        .collect();
    if !differences.is_empty() {
        let what = "the version of NCCL";
        return Err(GroupError::Different { what, differences });
    }
    for offer in offers {
        let same = offers.iter().enumerate();
        let same =
            same.filter(|(_, other)| (&other.gpu, &other.machine) == (&offer.gpu, &offer.machine));
        let ranks: Vec<_> = same.map(|(rank, _)| rank).collect();
        if ranks.len() > 1 {
            let device = offer.gpu.clone();
            return Err(GroupError::SameDevice { ranks, device });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers(gpus: &[(&str, &str, &str)]) -> Vec<Offer> {
        let offer = |(machine, gpu, version): &(&str, &str, &str)| Offer {
            machine: (*machine).to_owned(),
            gpu: (*gpu).to_owned(),
            version: (*version).to_owned(),
            ..Offer::default()
        };
        gpus.iter().map(offer).collect()
    }

    #[test]
    fn ranks_on_one_gpu_and_other_versions_are_named() {
        let fine = [
            ("a", "1", "2.27.3"),
            ("b", "1", "2.27.3"),
            ("a", "2", "2.27.3"),
        ];
        check(&offers(&fine)).unwrap();
        let same = [
            ("a", "1", "2.27.3"),
            ("a", "2", "2.27.3"),
            ("a", "1", "2.27.3"),
        ];
        let error = check(&offers(&same)).unwrap_err();
        assert!(
            matches!(&error, GroupError::SameDevice { ranks, device } if *ranks == [0, 2] && device == "1"),
            "{error}"
        );
        let versions = [("a", "1", "2.27.3"), ("a", "2", "2.18.1")];
        let error = check(&offers(&versions)).unwrap_err().to_string();
        assert!(error.contains("rank 1 2.18.1"), "{error}");
    }
}
