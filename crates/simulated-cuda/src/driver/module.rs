//! Modules: PTX text, which the interpreter runs. Binary images are not modelled.

use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use std::sync::atomic::Ordering;

use super::current;
use crate::device::objects::{Function, Module};
use crate::handle::Kind;
use crate::ptx;
use crate::simulator::{CHECKS_PTX, DRIVER_VERSION, of_handle};
use crate::status::{Outcome, Status, answer, not_modelled, store};

/// The newest version of PTX that a driver supports. Drivers before 11 do not support the simulated device.
fn newest_ptx(driver: i32) -> (i32, i32) {
    let (major, minor) = (driver / 1000, driver % 1000 / 10);
    match (major, minor) {
        (13.., _) => (major - 4, minor),
        // 12.6 has the same version as 12.5.
        (12, 6..) => (8, minor - 1),
        (12, _) => (8, minor),
        _ => (7, minor),
    }
}

/// The version of PTX that a text is written in.
fn ptx_version(text: &str) -> Option<(i32, i32)> {
    let mut lines = text.lines().map(str::trim_start);
    let rest = lines.find_map(|line| line.strip_prefix(".version"))?;
    let (major, minor) = rest.split_whitespace().next()?.split_once('.')?;
    major.parse().ok().zip(minor.parse().ok())
}

fn load(module: *mut u64, text: &str) -> Outcome {
    let mut device = current::sound_device()?;
    if device.faults.modules.strikes() {
        return Err(Status::OUT_OF_MEMORY);
    }
    if !text.contains(".version") {
        return Err(Status::INVALID_IMAGE);
    }
    if CHECKS_PTX.load(Ordering::SeqCst) {
        let version = ptx_version(text).ok_or(Status::INVALID_PTX)?;
        if version > newest_ptx(DRIVER_VERSION.load(Ordering::SeqCst)) {
            return Err(Status::UNSUPPORTED_PTX_VERSION);
        }
    }
    let code = ptx::Module::parse(text).map_err(|message| {
        eprintln!("simulated CUDA: {message}");
        Status::INVALID_PTX
    })?;
    let serial = device.objects.serial();
    device.objects.modules.insert(
        serial,
        Module {
            code,
            functions: HashMap::new(),
        },
    );
    // SAFETY: the caller of the entry point passes a place for one handle.
    unsafe { store(module, device.handle(Kind::Module, serial)) }
}

/// # Safety
/// `text` is null or a text with a final zero byte.
unsafe fn text_of<'a>(text: *const c_char) -> Outcome<&'a str> {
    if text.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: not null, and by contract a text with a final zero byte.
    unsafe { CStr::from_ptr(text) }
        .to_str()
        .map_err(|_| Status::INVALID_IMAGE)
}

/// Loads a module from PTX text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut u64, image: *const c_char) -> u32 {
    // SAFETY: the caller passes PTX, which ends with a zero byte; a binary image has one in its first bytes.
    answer(|| load(module, unsafe { text_of(image) }?))
}

/// Loads a module from PTX text; compiler options have no effect.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut u64,
    image: *const c_char,
    _count: u32,
    _options: u64,
    _values: u64,
) -> u32 {
    // SAFETY: the same contract.
    answer(|| load(module, unsafe { text_of(image) }?))
}

/// Loads a module from a file with PTX text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoad(module: *mut u64, path: *const c_char) -> u32 {
    answer(|| {
        // SAFETY: the caller passes a text.
        let path = unsafe { text_of(path) }?;
        let text = std::fs::read_to_string(path).map_err(|_| Status::FILE_NOT_FOUND)?;
        load(module, &text)
    })
}

/// Unloads a module, also in a lost context, whose status it then returns.
#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: u64) -> u32 {
    answer(|| {
        drop(current::device()?);
        let (mut device, serial) = of_handle(module, Kind::Module)?;
        device
            .objects
            .modules
            .remove(&serial)
            .ok_or(Status::INVALID_HANDLE)?;
        device
            .objects
            .functions
            .retain(|_, function| function.module != serial);
        device.faults.check()
    })
}

/// A kernel of a module, by name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: *mut u64,
    module: u64,
    name: *const c_char,
) -> u32 {
    answer(|| {
        drop(current::sound_device()?);
        // SAFETY: the caller passes a text.
        let name = unsafe { text_of(name) }?;
        let (mut device, serial) = of_handle(module, Kind::Module)?;
        let next = device.objects.serial();
        let objects = &mut device.objects;
        let module = objects
            .modules
            .get_mut(&serial)
            .ok_or(Status::INVALID_HANDLE)?;
        let known = match module.functions.get(name) {
            Some(&known) => known,
            None => {
                let kernel = match module.code.kernel(name) {
                    Ok(kernel) => kernel.ok_or(Status::NOT_FOUND)?,
                    Err(message) => not_modelled(&format!("kernel {name}: {message}")),
                };
                module.functions.insert(name.to_owned(), next);
                objects.functions.insert(
                    next,
                    Function {
                        module: serial,
                        kernel,
                        attributes: HashMap::new(),
                    },
                );
                next
            }
        };
        // SAFETY: the caller passes a place for one handle.
        unsafe { store(function, device.handle(Kind::Function, known)) }
    })
}
