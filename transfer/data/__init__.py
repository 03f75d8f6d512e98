"""Detection and segmentation data: COCO, LVIS, VOC, label images, embedded scenes, and checks of them."""
