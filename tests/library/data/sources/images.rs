use std::fs;
use std::path::Path;

use candle_headroom::data::{Dataset, ImageFolder, stack_images};
use image::{DynamicImage, GrayImage, ImageFormat, Luma, Rgb, RgbImage, Rgba, RgbaImage};
use tempfile::TempDir;

use super::{at, is_out_of_range, refused};

/// Pixels that say where they are.
fn gradient(height: u32, width: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| Rgb([10 * x as u8, 10 * y as u8, 200]))
}

fn save(folder: &TempDir, class: &str, name: &str, content: &[u8]) {
    let class = folder.path().join(class);
    fs::create_dir_all(&class).unwrap();
    fs::write(class.join(name), content).unwrap();
}

fn encoded(image: impl Into<DynamicImage>, format: ImageFormat) -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    image.into().write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

/// A folder with one image.
fn single(name: &str, content: &[u8]) -> (TempDir, ImageFolder) {
    let folder = tempfile::tempdir().unwrap();
    save(&folder, "class", name, content);
    let images = ImageFolder::open(folder.path()).unwrap();
    (folder, images)
}

#[test]
fn classes_are_folders_and_samples_are_their_images_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let image = encoded(gradient(2, 3), ImageFormat::Png);
    for (class, name) in [
        ("b", "2.PNG"),
        ("b", "10.png"),
        ("a", "x.jpeg"),
        ("b", ".hidden.png"),
        ("b", "notes.txt"),
        (".c", "1.png"),
    ] {
        save(&folder, class, name, &image);
    }
    fs::write(folder.path().join("no class.png"), &image).unwrap();
    fs::create_dir_all(folder.path().join("none/deeper.png")).unwrap();
    let images = ImageFolder::open(folder.path()).unwrap();
    assert_eq!(images.classes(), ["a", "b", "none"]);
    let found: Vec<_> = (0..images.len())
        .map(|index| images.get(index).unwrap())
        .collect();
    let found: Vec<_> = found
        .iter()
        .map(|image| (image.label, image.path.strip_prefix(folder.path()).unwrap()))
        .collect();
    assert_eq!(
        found,
        [
            (0, Path::new("a/x.jpeg")),
            (1, Path::new("b/10.png")),
            (1, Path::new("b/2.PNG"))
        ]
    );
    is_out_of_range(&images);
}

#[test]
fn pixels_of_a_png_come_back_exactly() {
    let folder = tempfile::tempdir().unwrap();
    let rgb = gradient(4, 5);
    let gray = GrayImage::from_fn(5, 4, |x, y| Luma([(50 * x + y) as u8]));
    let rgba = RgbaImage::from_fn(5, 4, |x, y| Rgba([x as u8, y as u8, 3, 128]));
    for (class, image) in [
        ("a", DynamicImage::from(rgb.clone())),
        ("b", gray.clone().into()),
        ("c", rgba.clone().into()),
    ] {
        save(&folder, class, "1.png", &encoded(image, ImageFormat::Png));
    }
    let images = ImageFolder::open(folder.path()).unwrap();
    let pixels = [0, 1, 2].map(|index| images.get(index).unwrap().pixels);
    let all = pixels[0].flatten_all().unwrap();
    assert_eq!(&all.to_vec1::<u8>().unwrap(), rgb.as_raw());
    // Gray to colors, and colors without opacity.
    let [_, gray, rgba] = pixels.map(|pixels| pixels.to_vec3::<u8>().unwrap());
    assert_eq!((gray.len(), gray[3][4].as_slice()), (4, &[203; 3][..]));
    assert_eq!((rgba.len(), rgba[3][4].as_slice()), (4, &[4, 3, 3][..]));
}

#[test]
fn a_jpeg_is_decoded_whatever_its_name() {
    let image = gradient(16, 16);
    let content = encoded(image.clone(), ImageFormat::Jpeg);
    for name in ["1.jpg", "1.png"] {
        let (_folder, images) = single(name, &content);
        let pixels = images
            .get(0)
            .unwrap()
            .pixels
            .flatten_all()
            .unwrap()
            .to_vec1::<u8>()
            .unwrap();
        let differences = pixels
            .iter()
            .zip(image.as_raw())
            .map(|(a, b)| f64::from(a.abs_diff(*b)));
        let mean = differences.sum::<f64>() / pixels.len() as f64;
        // Quality 75 loses about 3 of 255 here; transposed or without its colors it would be far off.
        assert!(mean < 8., "{mean}");
    }
}

#[test]
fn images_are_resized_to_a_height_and_a_width() {
    let folder = tempfile::tempdir().unwrap();
    save(
        &folder,
        "a",
        "wide.png",
        &encoded(
            RgbImage::from_pixel(40, 8, Rgb([7, 8, 9])),
            ImageFormat::Png,
        ),
    );
    save(
        &folder,
        "b",
        "high.png",
        &encoded(
            RgbImage::from_pixel(5, 50, Rgb([1, 2, 3])),
            ImageFormat::Png,
        ),
    );
    let images = ImageFolder::builder(folder.path())
        .size(6, 10)
        .open()
        .unwrap();
    let (pixels, labels) =
        stack_images(vec![images.get(0).unwrap(), images.get(1).unwrap()]).unwrap();
    assert_eq!(pixels.dims(), [2, 6, 10, 3]);
    assert_eq!(labels.to_vec1::<u32>().unwrap(), [0, 1]);
    let pixels = pixels.flatten_from(1).unwrap().to_vec2::<u8>().unwrap();
    assert_eq!(pixels, [[7, 8, 9].repeat(60), [1, 2, 3].repeat(60)]);

    let images = ImageFolder::open(folder.path()).unwrap();
    let error = stack_images(vec![images.get(0).unwrap(), images.get(1).unwrap()])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("wide.png has [8, 40, 3]")
            && error.contains("high.png has [50, 5, 3]; set `size`"),
        "{error}"
    );
    assert!(stack_images(vec![]).is_err());
}

#[test]
fn a_truncated_image_is_an_error_wherever_it_ends() {
    for format in [ImageFormat::Png, ImageFormat::Jpeg] {
        let content = encoded(gradient(20, 20), format);
        let (folder, images) = single("1.png", &content);
        let path = folder.path().join("class/1.png");
        assert!(images.get(0).is_ok());
        // A PNG without its last chunk, which holds nothing, has all its pixels.
        let needed = if format == ImageFormat::Png {
            content.len() - 12
        } else {
            content.len()
        };
        for len in 0..needed {
            fs::write(&path, &content[..len]).unwrap();
            let error = refused(&images, 0);
            assert_eq!(at(&*error).0, path, "{format:?} of {len} bytes");
        }
    }
}

#[test]
fn the_end_of_a_thumbnail_is_not_the_end_of_the_image() {
    let content = encoded(gradient(20, 20), ImageFormat::Jpeg);
    let thumbnail = encoded(gradient(4, 4), ImageFormat::Jpeg);
    let mut with_thumbnail = content[..2].to_vec();
    with_thumbnail.extend([0xFF, 0xE1]);
    with_thumbnail.extend((thumbnail.len() as u16 + 2).to_be_bytes());
    with_thumbnail.extend(&thumbnail);
    with_thumbnail.extend(&content[2..]);
    let (folder, images) = single("1.jpg", &with_thumbnail);
    assert_eq!(images.get(0).unwrap().pixels.dims(), [20, 20, 3]);
    let path = folder.path().join("class/1.jpg");
    fs::write(&path, &with_thumbnail[..with_thumbnail.len() - 2]).unwrap();
    let error = refused(&images, 0);
    assert_eq!(at(&*error).1, Some(with_thumbnail.len() as u64 - 2));
    // What follows the end is not looked at.
    with_thumbnail.extend(b"a trailer");
    fs::write(&path, &with_thumbnail).unwrap();
    assert!(images.get(0).is_ok());
}

#[test]
fn changed_bits_never_panic() {
    use rand::{Rng, SeedableRng, rngs::StdRng};
    let mut random = StdRng::seed_from_u64(16);
    for format in [ImageFormat::Png, ImageFormat::Jpeg] {
        let content = encoded(gradient(20, 20), format);
        let (folder, images) = single("1.png", &content);
        let mut failed = 0;
        for _ in 0..500 {
            let mut content = content.clone();
            let at = random.random_range(0..content.len());
            content[at] ^= 1 << random.random_range(0..8);
            fs::write(folder.path().join("class/1.png"), content).unwrap();
            failed += usize::from(images.get(0).is_err());
        }
        assert!(failed > 20, "{failed} of 500 in {format:?}");
    }
}

#[test]
fn errors_name_the_file_or_the_folder() {
    let (folder, images) = single("1.jpg", b"no image at all");
    let error = refused(&images, 0);
    assert_eq!(at(&*error).0, folder.path().join("class/1.jpg"));
    fs::remove_file(folder.path().join("class/1.jpg")).unwrap();
    let error = refused(&images, 0);
    assert!(at(&*error).2.contains("No such file"), "{error}");

    let missing = folder.path().join("missing");
    assert_eq!(at(&ImageFolder::open(&missing).unwrap_err()).0, missing);
    fs::write(&missing, b"").unwrap();
    assert!(
        at(&ImageFolder::open(&missing).unwrap_err())
            .2
            .contains("Not a directory")
    );
    let is = |error: candle_headroom::Error, text: &str| {
        assert!(
            error.is_data() && error.to_string().contains(text),
            "{error}"
        );
    };
    let error = ImageFolder::open(folder.path()).unwrap_err();
    is(error, "with its subfolders has no samples");
    for (height, width) in [(0, 1), (1, 0)] {
        let error = ImageFolder::builder(folder.path())
            .size(height, width)
            .open()
            .unwrap_err();
        is(error, "must be at least 1 × 1");
    }
}

/// A PNG whose header states a size; its data are the beginning of a compressed stream.
fn stated(width: u32, height: u32) -> Vec<u8> {
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    let size = [width.to_be_bytes(), height.to_be_bytes()].concat();
    let header = [&size[..], &[8, 2, 0, 0, 0]].concat();
    let data = [0x78, 0x9c, 0x63, 0x60, 0x00, 0x00];
    for (kind, content) in [(b"IHDR", &header[..]), (b"IDAT", &data), (b"IEND", &[])] {
        let chunk = [&kind[..], content].concat();
        png.extend((content.len() as u32).to_be_bytes());
        png.extend(&chunk);
        png.extend(crc32fast::hash(&chunk).to_be_bytes());
    }
    png
}

#[test]
fn an_image_of_more_pixels_than_allowed_is_refused_before_it_is_decoded() {
    let (_folder, images) = single("1.png", &stated(20_000, 20_000));
    let error = refused(&images, 0);
    let problem = at(&*error).2;
    assert!(
        problem.contains("20000 × 20000 pixels") && problem.contains("`max_pixels`"),
        "{problem}"
    );
    for (name, format) in [("1.png", ImageFormat::Png), ("1.jpg", ImageFormat::Jpeg)] {
        let folder = tempfile::tempdir().unwrap();
        save(&folder, "class", name, &encoded(gradient(20, 10), format));
        let builder = || ImageFolder::builder(folder.path());
        let within = builder().max_pixels(200).open().unwrap();
        assert_eq!(within.get(0).unwrap().pixels.dims(), [20, 10, 3]);
        let error = refused(&builder().max_pixels(199).size(2, 2).open().unwrap(), 0);
        assert!(at(&*error).2.contains("10 × 20 pixels"), "{error}");
    }
}

/// Waits until folders that were just changed would show a further change.
fn age() {
    std::thread::sleep(std::time::Duration::from_millis(2_100));
}

#[test]
fn an_index_is_used_until_a_folder_changes() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let image = encoded(gradient(2, 3), ImageFormat::Png);
    for (class, name) in [("a", "1.png"), ("a", "2.png"), ("b", "3.png")] {
        save(&folder, class, name, &image);
    }
    let index = elsewhere.path().join("index.json");
    let len = || {
        ImageFolder::builder(folder.path())
            .index(&index)
            .open()
            .unwrap()
            .len()
    };
    // Just changed: a further change might have the same time.
    assert_eq!((len(), index.exists()), (3, false));
    let classes = ["a", "b"].map(|class| folder.path().join(class));
    age();
    assert_eq!((len(), index.exists()), (3, true));
    // It is what is read, in place of the folders.
    let text = fs::read_to_string(&index).unwrap();
    fs::write(&index, text.replace(r#""1.png","#, "")).unwrap();
    assert_eq!(len(), 2);
    // A file that is added, and a class that is removed; also where the modification time stays what it was.
    let modified = fs::metadata(&classes[1]).unwrap().modified().unwrap();
    save(&folder, "b", "4.png", &image);
    #[cfg(unix)]
    fs::File::open(&classes[1])
        .unwrap()
        .set_modified(modified)
        .unwrap();
    assert_eq!(len(), 4);
    age();
    assert_eq!(len(), 4);
    assert!(fs::read_to_string(&index).unwrap().contains("4.png"));
    fs::remove_dir_all(&classes[0]).unwrap();
    assert_eq!(len(), 2);

    // That of another folder is not used.
    age();
    assert_eq!(len(), 2);
    let text = fs::read_to_string(&index).unwrap();
    let here = folder.path().canonicalize().unwrap();
    let other = text.replace(here.to_str().unwrap(), "/elsewhere");
    fs::write(&index, other.replace(r#","4.png""#, "")).unwrap();
    assert_eq!(len(), 2);

    // An index leads to no file elsewhere.
    fs::write(&index, text.replace("4.png", "../4.png")).unwrap();
    let error = ImageFolder::builder(folder.path())
        .index(&index)
        .open()
        .unwrap_err();
    assert!(
        at(&error)
            .2
            .starts_with("names ../4.png, which is no entry"),
        "{error}"
    );

    fs::write(&index, "{}").unwrap();
    let error = ImageFolder::builder(folder.path())
        .index(&index)
        .open()
        .unwrap_err();
    assert_eq!(at(&error).0, index);
    assert!(
        at(&error).2.starts_with("is no index of images: "),
        "{error}"
    );
    let within = folder.path().join("b/index.json");
    let error = ImageFolder::builder(folder.path())
        .index(&within)
        .open()
        .unwrap_err();
    assert!(
        at(&error).2.starts_with("lies in the folder of the images"),
        "{error}"
    );
    assert!(!within.exists());
}
