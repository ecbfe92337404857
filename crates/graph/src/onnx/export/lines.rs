//! Lines of numbers that were images, or become images: written with their channels first, as the image itself.

use super::{Exporter, Value};
use crate::graph::NodeId;
use thalweg_core::Result;
use thalweg_core::file_order::channels_first;

/// Where each place of memory is in a line of that order.
pub fn inverse(order: &[u32]) -> Vec<u32> {
    let mut places = vec![0; order.len()];
    order.iter().enumerate().for_each(|(place, memory)| places[*memory as usize] = place as u32);
    places
}

impl Exporter<'_> {
    /// A value in the order in which the line of another node is written.
    pub fn lined(&mut self, id: NodeId, like: NodeId) -> Result<String> {
        let wanted = self.orders.get(like).to_vec();
        let value = self.value(id)?;
        if value.order == wanted && !value.channels_first {
            return Ok(value.name.clone());
        }
        let plain = self.plain(id)?;
        Ok(if wanted.is_empty() { plain } else { self.writer.pick(&plain, &wanted) })
    }

    /// Says what has become of a node whose value stands in the order of its line.
    pub fn put_line(&mut self, id: NodeId, name: String) {
        self.put_line_of(id, id, name);
    }

    /// The same where it stands in the order of another node's line.
    pub fn put_line_of(&mut self, id: NodeId, like: NodeId, name: String) {
        let order = self.orders.get(like).to_vec();
        self.values[id.0] = Some(Value { name, channels_first: false, order });
    }

    /// A value under other sizes. Between an image and its line nothing moves.
    pub fn write_reshape(&mut self, id: NodeId, read: NodeId, sizes: &[usize]) -> Result<()> {
        let from = self.graph.shape(read).sizes();
        let len = sizes.iter().product::<usize>() as i64;
        match (from, sizes) {
            (&[height, width, channels], [_])
                if *self.orders.get(id) == channels_first([height, width, channels])[..] =>
            {
                let image = self.image(read)?;
                let name = self.writer.reshape(&image, &[0, len]);
                self.put_line(id, name);
            }
            ([_], &[height, width, channels]) => {
                let name = self.image_of_line(read, [height, width, channels])?;
                self.put_image(id, name);
            }
            _ => {
                let value = self.plain(read)?;
                let name = self.in_sizes(&value, sizes);
                self.put(id, name);
            }
        }
        Ok(())
    }

    /// The image of a line, with its channels first.
    pub fn image_of_line(&mut self, id: NodeId, [height, width, channels]: [usize; 3]) -> Result<String> {
        let value = self.value(id)?;
        if value.order == channels_first([height, width, channels]) {
            let name = value.name.clone();
            return Ok(self.writer.reshape(&name, &[0, channels, height, width].map(|size| size as i64)));
        }
        let flat = self.plain(id)?;
        let image = self.writer.reshape(&flat, &[0, height, width, channels].map(|size| size as i64));
        Ok(self.writer.transpose(&image, &[0, 3, 1, 2]))
    }
}
